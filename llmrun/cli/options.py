"""The settings that several commands share: each has one name as flag, `models.toml` key, `/set` key and JSON field.

A command takes a group of them as one parameter; `with_groups` spreads the group's fields into the signature
that Typer reads, and gathers them again.
"""

import gc
import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from llmrun.cli.terminal import streams
from llmrun.errors import UsageError

BROKEN_PIPE = 141  # what a shell reports for a program that SIGPIPE ended


def setting(flags: str, help: str, **more: Any) -> Any:
    """A Typer option with its environment twin: `--top-k` is also LLMRUN_TOP_K."""
    names = flags.split()
    long = next(name for name in names if name.startswith("--"))
    twin = "LLMRUN_" + long.split("/")[0].removeprefix("--").upper().replace("-", "_")
    return typer.Option(*names, help=help, envvar=twin, show_default=False, show_envvar=False, **more)


class SamplingOptions(NamedTuple):
    """How the next token is chosen. None: the model's default (`models.toml`, then the file, then llmrun's)."""

    seed: Annotated[int | None, setting("--seed", "Repeat a run with its seed; -1 draws one.")] = None
    temp: Annotated[float | None, setting("--temp --temperature", "Temperature; 0 is greedy.")] = None
    top_k: Annotated[int | None, setting("--top-k", "Keep the K likeliest tokens; 0 keeps all.")] = None
    top_p: Annotated[float | None, setting("--top-p", "Keep the likeliest tokens up to this mass.")] = None
    min_p: Annotated[float | None, setting("--min-p", "Drop tokens less likely than this share of the best.")] = None
    repeat_penalty: Annotated[float | None, setting("--repeat-penalty", "Penalty on recent tokens; 1 is off.")] = None
    repeat_last_n: Annotated[int | None, setting("--repeat-last-n", "Tokens that penalties look back on.")] = None
    presence_penalty: Annotated[float | None, setting("--presence-penalty", "Penalty on tokens present.")] = None
    frequency_penalty: Annotated[float | None, setting("--frequency-penalty", "Penalty per occurrence.")] = None
    ignore_eos: Annotated[bool, setting("--ignore-eos", "Go on past the end token.")] = False
    typical: Annotated[float | None, setting("--typical", "Locally typical sampling; 1 is off.")] = None
    top_n_sigma: Annotated[float | None, setting("--top-n-sigma", "Keep logits this near the best; 0 is off.")] = None
    dynatemp_range: Annotated[float | None, setting("--dynatemp-range", "Vary temp by entropy, this much.")] = None
    dynatemp_exponent: Annotated[float | None, setting("--dynatemp-exponent", "Shape of that variation.")] = None
    dry_multiplier: Annotated[float | None, setting("--dry-multiplier", "DRY penalty on repetition.")] = None
    dry_base: Annotated[float | None, setting("--dry-base", "Growth of the DRY penalty per token.")] = None
    dry_allowed_length: Annotated[int | None, setting("--dry-allowed-length", "Repeats that DRY allows.")] = None
    dry_last_n: Annotated[int | None, setting("--dry-last-n", "Tokens that DRY looks back on.")] = None
    xtc_probability: Annotated[float | None, setting("--xtc-probability", "Chance of dropping top choices.")] = None
    xtc_threshold: Annotated[float | None, setting("--xtc-threshold", "What counts as a top choice.")] = None
    mirostat: Annotated[int | None, setting("--mirostat", "2 for Mirostat 2.0, 0 for off.")] = None
    mirostat_tau: Annotated[float | None, setting("--mirostat-tau", "Target surprise, in bits.")] = None
    mirostat_eta: Annotated[float | None, setting("--mirostat-eta", "Learning rate.")] = None
    samplers: Annotated[str | None, setting("--samplers", "Order of the samplers.", metavar="NAME,...")] = None
    logit_bias: Annotated[
        list[str] | None, typer.Option("--logit-bias", help="Favour or ban a token; repeatable.", metavar="ID=BIAS")
    ] = None


class ShapeOptions(NamedTuple):
    """What form an answer must have."""

    json_schema: Annotated[
        str | None,
        typer.Option("--json-schema", "--schema", help="Answer in this JSON schema.", metavar="FILE|TEXT"),
    ] = None
    json_object: Annotated[bool, typer.Option("--json-object", help="Answer with a JSON object.")] = False
    grammar: Annotated[
        str | None, typer.Option("--grammar", "--grammar-file", help="Answer by a GBNF grammar.", metavar="FILE|TEXT")
    ] = None


class AdapterOptions(NamedTuple):
    """What is applied to the model's weights."""

    lora: Annotated[
        list[str] | None, typer.Option("--lora", help="LoRA adapter; repeatable.", metavar="FILE[:SCALE]")
    ] = None


class LoadOptions(NamedTuple):
    """How the model is loaded and how much it may hold."""

    ctx: Annotated[str | None, setting("-c --ctx --ctx-size", "Context in tokens, or auto.", metavar="N|auto")] = None
    threads: Annotated[int | None, setting("-t --threads", "CPU threads; chosen from cores and load.")] = None
    gpu_layers: Annotated[
        str | None, setting("-g --gpu-layers --n-gpu-layers", "Layers on the GPU.", metavar="auto|all|N")
    ] = None
    batch: Annotated[int | None, setting("-b --batch --batch-size", "Most tokens computed in one step.")] = None
    ubatch: Annotated[int | None, setting("-ub --ubatch --ubatch-size", "Tokens computed in one pass.")] = None
    flash_attn: Annotated[str | None, setting("-fa --flash-attn", "Flash attention.", metavar="auto|on|off")] = None
    kv_type: Annotated[str | None, setting("--kv-type", "KV cache type, such as q8_0.", metavar="K[,V]")] = None
    cache_type_k: Annotated[str | None, typer.Option("-ctk", "--cache-type-k", hidden=True)] = None
    cache_type_v: Annotated[str | None, typer.Option("-ctv", "--cache-type-v", hidden=True)] = None
    device: Annotated[str | None, setting("--device", "Devices that take layers.", metavar="NAME,...|none")] = None
    kv_on_cpu: Annotated[bool, setting("--kv-on-cpu", "Keep the KV cache in RAM.")] = False
    cpu_moe: Annotated[bool, setting("--cpu-moe", "Keep the experts of a mixture in RAM.")] = False
    require_gpu: Annotated[bool, setting("--require-gpu", "Fail where a layer stays on the CPU.")] = False
    rpc: Annotated[str | None, setting("--rpc", "Workers on other machines.", metavar="HOST:PORT,...")] = None
    rope_scaling: Annotated[
        str | None, setting("--rope-scaling", "Past the trained context.", metavar="none|linear|yarn")
    ] = None
    rope_scale: Annotated[float | None, setting("--rope-scale", "How many times the trained context.")] = None
    no_mmap: Annotated[bool, setting("--no-mmap", "Read the weights instead of mapping the file.")] = False
    mlock: Annotated[bool, setting("--mlock", "Keep the weights from being swapped out.")] = False


class OutputOptions(NamedTuple):
    """What is said beside the answer."""

    quiet: Annotated[bool, setting("-q --quiet", "No statistics line.")] = False
    verbose: Annotated[bool, setting("-v --verbose", "Say more, llama.cpp's log included.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.")] = False


def with_groups(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let Typer see the fields of each option group among the function's parameters as options of their own."""
    hints = get_type_hints(function, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if hasattr(hint, "_fields")}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in groups:
            parameters += _spread(groups[parameter.name])
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))

    def gathered(**values: Any) -> Any:
        for name, group in groups.items():
            values[name] = group(**{field: values.pop(field) for field in group._fields})
        gc.freeze()  # what the start made stays: no use looking through it
        gc.enable()
        try:
            return function(**values)
        except BrokenPipeError:  # Typer would make it exit status 1
            streams.abandon(sys.stdout)
            raise typer.Exit(BROKEN_PIPE) from None
        except KeyboardInterrupt:  # and this one silent
            streams.say("interrupted")
            raise typer.Exit(130) from None

    gathered.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    gathered.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    gathered.__doc__ = function.__doc__
    return gathered


def _spread(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=group._field_defaults[name], annotation=hints[name]
        )
        for name in group._fields
    ]


def count(value: str | None, name: str, words: tuple[str, ...]) -> int | str | None:
    """A setting that is a number of at least 0 or one of `words`. Raises UsageError."""
    if value is None or value.lower() in words:
        return value.lower() if value else None
    try:
        number = int(value)
    except ValueError:
        number = -1
    if number < 0:
        raise UsageError(f"--{name} {value} is neither a number nor {' nor '.join(words)}")
    return number
