"""From option groups to the settings that the core takes. Raises UsageError for what means nothing."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from llmrun import paths
from llmrun.cli.options import AdapterOptions, LoadOptions, SamplingOptions, ShapeOptions, count
from llmrun.engine.adapter import Lora
from llmrun.engine.model import ModelSettings
from llmrun.engine.params import SamplingParams, check_params
from llmrun.errors import UsageError
from llmrun.prepare.settings import ContextWish, check_flash_attn, merge_sampling, parse_kv_type

MOST = 2**20  # of threads and batch sizes
ALL_LAYERS = -1  # as llama.cpp has it


def sampling_params(
    sampling: SamplingOptions, grammar: str, catalogue: Mapping[str, Any], file: Mapping[str, Any]
) -> SamplingParams:
    """What was given, else the catalogue's, the file's, llmrun's default."""
    given = {name: value for name, value in sampling._asdict().items() if value is not None and value is not False}
    if sampling.samplers is not None:
        given["samplers"] = tuple(name.strip() for name in sampling.samplers.replace(";", ",").split(","))
    given["logit_bias"] = tuple(_bias(text) for text in sampling.logit_bias or ())
    params = merge_sampling(given, catalogue, file, grammar=grammar)
    check_params(params)
    return params


def _bias(text: str) -> tuple[int, float]:
    """`ID=BIAS`, or llama.cpp's `ID+BIAS` and `ID-BIAS`; `-inf` bans a token."""
    digits = text[: len(text) - len(text.lstrip("0123456789"))]
    try:
        return int(digits), float(text[len(digits) :].removeprefix("="))
    except ValueError:
        raise UsageError(f"--logit-bias {text} is not ID=BIAS", "such as 15043=-1.5, or 15043=-inf") from None


def grammar(shape: ShapeOptions) -> str:
    """The grammar that an answer must follow, empty for none. Raises GrammarError."""
    given = [shape.json_schema is not None, shape.json_object, shape.grammar is not None]
    if sum(given) > 1:
        raise UsageError("--json-schema, --json-object and --grammar exclude each other")
    if not any(given):
        return ""
    from llmrun.engine.grammar import check_grammar_text
    from llmrun.engine.schema import json_object_grammar, parse_schema, schema_to_gbnf

    if shape.json_schema is not None:
        return schema_to_gbnf(parse_schema(_file_or_text(shape.json_schema, "{")))
    if shape.json_object:
        return json_object_grammar()
    text = _file_or_text(shape.grammar or "", "::=")
    check_grammar_text(text)
    return text


def _file_or_text(value: str, sign_of_text: str) -> str:
    """The content of a file, or the value itself where it looks like the thing asked for."""
    path = paths.expand(value)
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        if sign_of_text not in value:
            raise UsageError(f"cannot read {value}: {error}") from None
    if sign_of_text in value or not value.strip() or value.strip() in ("true", "false"):
        return value
    raise UsageError(f"there is no file {value}")


def adapters(options: AdapterOptions) -> tuple[Lora, ...]:
    """`FILE` or `FILE:SCALE`, in order."""
    found = []
    for text in options.lora or ():
        path, scale = paths.expand(text), 1.0
        head, _, tail = text.rpartition(":")
        if head and not path.exists():
            with suppress(ValueError):
                path, scale = paths.expand(head), float(tail)
        if not path.is_file():
            raise UsageError(f"there is no adapter file {path}")
        found.append(Lora(Path(path), scale))
    return tuple(found)


def model_settings(load: LoadOptions) -> ModelSettings:
    return ModelSettings(mmap=not load.no_mmap, mlock=load.mlock)


def context_wish(load: LoadOptions) -> ContextWish:
    """The user's wishes for the context and for memory."""
    n_ctx = count(load.ctx, "ctx", ("auto",))
    for name, value in (("threads", load.threads), ("batch", load.batch), ("ubatch", load.ubatch)):
        if value is not None and not 1 <= value <= MOST:
            raise UsageError(f"--{name} {value} is not between 1 and {MOST}")
    if n_ctx == 0:
        raise UsageError("--ctx 0 holds no prompt", "-c auto chooses a size")
    layers = count(load.gpu_layers, "gpu-layers", ("auto", "all"))
    return ContextWish(
        n_ctx=n_ctx if isinstance(n_ctx, int) else None,
        n_threads=load.threads,
        n_batch=load.batch or (max(512, load.ubatch) if load.ubatch else None),
        n_ubatch=load.ubatch or (min(512, load.batch) if load.batch else None),
        flash_attn=check_flash_attn(load.flash_attn or "auto"),
        kv_type=_kv_type(load),
        gpu_layers=layers if isinstance(layers, int) else ALL_LAYERS if layers == "all" else None,
        devices=tuple(name.strip() for name in load.device.split(",")) if load.device else None,
        kv_on_cpu=load.kv_on_cpu,
        cpu_moe=load.cpu_moe,
        require_gpu=load.require_gpu,
        rpc=_workers(load.rpc),
        rope_scaling=(load.rope_scaling or "").lower(),
        rope_scale=load.rope_scale or 0.0,
    )


def _kv_type(load: LoadOptions) -> tuple[str, str] | None:
    kv_type = parse_kv_type(load.kv_type) if load.kv_type else None
    if load.cache_type_k or load.cache_type_v:
        k_type, v_type = kv_type or ("f16", "f16")
        return parse_kv_type(f"{load.cache_type_k or k_type},{load.cache_type_v or v_type}")
    return kv_type


def _workers(rpc: str | None) -> tuple[str, ...]:
    if not rpc:
        return ()
    from llmrun.engine.offload import parse_endpoints

    return parse_endpoints(rpc)
