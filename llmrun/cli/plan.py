"""`llmrun plan`: what fits, before a model is loaded or even fetched."""

from typing import TYPE_CHECKING, Annotated

import typer

from llmrun.cli.options import LoadOptions, OutputOptions, with_groups
from llmrun.cli.terminal import streams
from llmrun.cli.terminal.completion import any_model

if TYPE_CHECKING:
    from llmrun.machine.bandwidth import Bandwidth
    from llmrun.machine.inventory import Machine
    from llmrun.plan.table import QuantRow, Row
    from llmrun.prepare.forecast import Forecast


@with_groups
def command(
    reference: Annotated[str, typer.Argument(metavar="MODEL", show_default=False, autocompletion=any_model)],
    *,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    load: LoadOptions,
    output: OutputOptions,
) -> None:
    """Show what fits this machine, by context and type of the KV cache. Of a model that is not here only the header
    is read, and the quantizations of its repo are compared.

    llmrun plan smollm2

    llmrun plan Qwen/Qwen3-8B-GGUF -c 16384
    """
    from llmrun.cli.answering import wishes
    from llmrun.cli.output import print_json
    from llmrun.cli.terminal.reporting import StderrReport
    from llmrun.prepare.forecast import forecast

    found = forecast(reference, wishes.context_wish(load), StderrReport())
    if json:
        print_json(found)
    else:
        _print(found)


def _print(found: "Forecast") -> None:
    from llmrun.cli.output import print_table
    from llmrun.report import size_text

    model = found.model
    where = "" if model.is_here else ", not here yet"
    print(
        f"{streams.shown(model.ref)}: {streams.shown(model.arch)} {model.n_params / 1e6:.0f}M {model.quant}, "
        f"{size_text(model.size_bytes)}, trained for {model.n_ctx_train} tokens{where}"
    )
    for line in machine_lines(found.machine, found.bandwidth):
        print(line)
    print()
    heads = ("ctx", "kv type", "weights", "kv cache", "compute", "total", "layers", "fits", "decode at most")
    print_table(heads, [_cells(row) for row in found.rows], right=heads[:1] + heads[2:6] + heads[8:])
    longest = ", ".join(f"{each.n_ctx or 'none'} with {each.kv_type}" for each in found.longest_contexts)
    print(f"\nlongest context that fits: {longest}")
    if found.quants:
        _print_quants(found.quants)
    print("\ndecode at most: an upper bound, from the measured bandwidth and what the CPU reads for each token")
    if not found.bandwidth.is_quiet:
        busy = f"{found.bandwidth.busy_cores:.1f} cores busy"
        print(f"it is too low: the bandwidth was measured while other programs kept {busy}")


def _print_quants(quants: "tuple[QuantRow, ...]") -> None:
    from llmrun.cli.output import print_table
    from llmrun.report import size_text

    print()
    heads = ("quant", "file", "total", "layers", "fits", "decode at most", f"with -c {quants[0].row.n_ctx}")
    cells = [
        (
            each.quant,
            size_text(each.size_bytes),
            size_text(each.row.total_bytes),
            _layers(each.row),
            "yes" if each.row.fits else "no",
            _bound(each.row),
            "best that fits" if each.best else "",
        )
        for each in quants
    ]
    print_table(heads, cells, right=("file", "total", "decode at most"))


def machine_lines(machine: "Machine", bandwidth: "Bandwidth") -> list[str]:
    """RAM with its limit and bandwidth, then a line for each device that takes layers."""
    from llmrun.machine.devices import offload_devices
    from llmrun.report import size_text

    memory = machine.memory
    limit = f", {memory.limit_name} {size_text(memory.limit_bytes)}" if memory.limit_bytes else ""
    lines = [
        f"CPU: {streams.shown(machine.cpu)}, {machine.cores.reason}, {size_text(memory.free_bytes)} of "
        f"{size_text(memory.total_bytes)} RAM free{limit}, reads {size_text(bandwidth.bytes_per_s)}/s"
    ]
    for device in offload_devices(machine.devices):
        free = f"{size_text(device.free_bytes)} of {size_text(device.total_bytes)} free"
        lines.append(f"{device.name}: {streams.shown(device.description)}, {free}")
    return lines


def _cells(row: "Row") -> tuple[str, ...]:
    from llmrun.report import size_text

    sizes = (row.weights_bytes, row.kv_bytes, row.compute_bytes, row.total_bytes)
    kv_type = ",".join(dict.fromkeys(row.kv_type))
    fits = "yes" if row.fits else "no"
    return (str(row.n_ctx), kv_type, *map(size_text, sizes), _layers(row), fits, _bound(row))


def _layers(row: "Row") -> str:
    text = " + ".join(f"{device.layers} {device.name}" for device in row.layers)
    return f"{text}, {row.cpu_expert_layers} layers' experts CPU" if row.cpu_expert_layers else text


def _bound(row: "Row") -> str:
    return f"{row.decode_tps_at_most:.3g} tok/s" if row.decode_tps_at_most else ""
