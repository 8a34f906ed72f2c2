"""`llmrun doctor`: what this machine, this build and these settings are, and what to change."""

from typing import TYPE_CHECKING, Annotated

import typer

from llmrun.cli.options import OutputOptions, with_groups
from llmrun.cli.terminal import streams

if TYPE_CHECKING:
    from llmrun.prepare.checkup import Facts
    from llmrun.prepare.findings import Finding


@with_groups
def command(
    *,
    online: Annotated[bool, typer.Option("--online", help="Ask the hub too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    output: OutputOptions,
) -> None:
    """Show versions, cores, memory, devices and folders, and what is broken or could be better.

    The exit status is 1 when something is broken.
    """
    from llmrun.cli.output import jsonable, print_json
    from llmrun.prepare.checkup import gather
    from llmrun.prepare.findings import findings

    facts = gather(online)
    found = findings(facts)
    if json:
        print_json({**jsonable(facts), "findings": found})
    else:
        for title, lines in _sections(facts):
            for line in lines:
                print(f"{title:<10}{streams.shown(line)}")
                title = ""
        print()
        for finding in found:
            _print_finding(finding)
        if not found:
            print("nothing to mend")
    if any(finding.kind == "broken" for finding in found):
        raise typer.Exit(1)


def _print_finding(finding: "Finding") -> None:
    print(f"{finding.kind + ':':<10}{streams.shown(finding.text)}")
    print(f"{'':<10}{streams.shown(finding.remedy)}")


def _sections(facts: "Facts") -> list[tuple[str, list[str]]]:
    software = facts.software
    llama = f"llama-cpp-python {software.llama_cpp_python}, llama.cpp {software.llama_cpp}"
    return [
        ("llmrun", [f"{software.llmrun} on Python {software.python}, {software.platform}"]),
        ("llama.cpp", [software.fault] if software.fault else [llama, software.library]),
        ("build", [f"backends {', '.join(software.backends)}; uses {' '.join(software.features)}"]),
        ("cpu", _cpu(facts)),
        ("memory", [_memory(facts)]),
        ("devices", _devices(facts)),
        ("folders", _places(facts)),
        ("hub", _hub(facts)),
        ("gpu build", [f"{build.backend}: {build.command}" for build in facts.gpu_builds]),
    ]


def _cpu(facts: "Facts") -> list[str]:
    cores, threads = facts.machine.cores, facts.threads
    quota = f", quota {cores.quota:g}" if cores.quota else ""
    return [
        facts.machine.cpu,
        f"{cores.physical} cores, {cores.logical} hardware threads{quota}; {facts.busy_cores:.1f} busy now",
        f"{threads.n} thread{'s' if threads.n > 1 else ''}: {threads.reason}",
    ]


def _memory(facts: "Facts") -> str:
    from llmrun.report import size_text

    memory = facts.machine.memory
    limit = f", {memory.limit_name} {size_text(memory.limit_bytes)}" if memory.limit_bytes else ""
    return f"{size_text(memory.free_bytes)} of {size_text(memory.total_bytes)} free{limit}"


def _devices(facts: "Facts") -> list[str]:
    from llmrun.report import size_text

    lines = [
        f"{device.name}: {device.description}, {size_text(device.free_bytes)} of {size_text(device.total_bytes)} free"
        for device in facts.machine.devices
        if device.kind != "cpu"
    ]
    return lines or ["none but the CPU"]


def _places(facts: "Facts") -> list[str]:
    from llmrun.report import size_text

    lines = []
    for place in facts.places:
        held = f"{place.n_models} models, {size_text(place.size_bytes)}; " if place.n_models else ""
        lines.append(f"{place.path}: {held}{size_text(place.free_bytes)} free")
    return lines


def _hub(facts: "Facts") -> list[str]:
    if facts.hub is None:
        return ["not asked (--online asks it)"]
    answer = f"answers in {facts.hub.seconds:.1f} s" if facts.hub.answers else facts.hub.fault
    return [f"{facts.hub.endpoint}: {answer}"]
