"""What is planned against what llama.cpp says it allocates, in its own log."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from llmrun.engine import capi
from llmrun.engine.context import FLASH_ATTENTION, KV_TYPES
from llmrun.gguf.header import open_header
from llmrun.gguf.info import model_info
from llmrun.plan.compute import compute_bytes, output_bytes
from llmrun.plan.kv import kv_bytes
from llmrun.plan.placement import Model, model_of
from llmrun.plan.sizes import ContextSizes
from llmrun.plan.weights import host_bytes, sort_tensors
from tests import unusual
from tests.tiny import tiny_gguf

MIB = 1 << 20
LOG_STEP = 0.0101  # the log prints MiB with two digits
COMPUTE_TOLERANCE = 0.15

SIZES = (
    ContextSizes(512),
    ContextSizes(1000),
    ContextSizes(4096),
    ContextSizes(8192, n_ubatch=128),
    ContextSizes(4096, n_batch=2048, n_ubatch=2048),
    ContextSizes(4096, n_seq_max=4, n_outputs=4),
    ContextSizes(2048, n_outputs=512),
    ContextSizes(4096, flash_attn=False),
    ContextSizes(4096, kv_type=("q8_0", "q8_0")),
    ContextSizes(4096, kv_type=("q4_0", "q4_0")),
    ContextSizes(4096, kv_type=("q5_1", "q8_0")),
    ContextSizes(4096, kv_type=("f32", "f32")),
)


def read_model(path: Path) -> Model:
    header = open_header(path)
    info = model_info(header)
    return model_of(info, sort_tensors(header.tensors, info.n_layer))


def load(path: Path, *, allocate: bool) -> int:
    """A model loaded without mmap, or counted only."""
    lib = capi.lib()
    capi.log.lines.clear()
    params = lib.llama_model_default_params()
    params.load_mode = lib.LLAMA_LOAD_MODE_NONE
    params.no_alloc = not allocate
    model: int = lib.llama_model_load_from_file(str(path).encode(), params)
    assert model, capi.log.errors()
    return model


def context_log(model: int, sizes: ContextSizes) -> dict[str, float]:
    """What llama.cpp logs of a context: MiB by name."""
    lib = capi.lib()
    capi.log.lines.clear()
    context = lib.llama_init_from_model(model, context_params(lib, sizes))
    assert context, capi.log.errors()
    lib.llama_free(context)
    return logged()


def logged() -> dict[str, float]:
    """MiB by name (`CPU model`, `CPU KV`, `total KV`, `CPU compute`, `CPU output`) in the log so far."""
    log = "".join(text for _, text in capi.log.lines)
    found: dict[str, float] = {"total KV": 0.0}
    for name, size in re.findall(r"(\S+ +(?:model|KV|RS|compute|output)) buffer size = +([\d.]+) MiB", log):
        key = " ".join(name.split())
        found[key] = found.get(key, 0.0) + float(size)
    for kind in ("llama_kv_cache", "llama_memory_recurrent"):
        found["total KV"] += sum(map(float, re.findall(rf"{kind}: size = +([\d.]+) MiB", log)))
    return found


def context_params(lib: Any, sizes: ContextSizes) -> Any:
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = sizes.n_ctx, sizes.n_batch, sizes.n_ubatch
    params.n_seq_max, params.n_outputs_max = sizes.n_seq_max, sizes.n_outputs
    params.type_k, params.type_v = (KV_TYPES[name] for name in sizes.kv_type)
    params.flash_attn_type = FLASH_ATTENTION["auto" if sizes.flash_attn else "off"]
    params.swa_full, params.kv_unified = False, True
    return params


def check_contexts(path: Path, all_sizes: Iterable[ContextSizes]) -> None:
    """KV and output exact; compute within the tolerance."""
    model, loaded = read_model(path), load(path, allocate=False)
    try:
        for sizes in all_sizes:
            log = context_log(loaded, sizes)
            caches = 2  # each is rounded by itself
            kv = sum(kv_bytes(model.info, model.weights, sizes)) / MIB
            assert kv == pytest.approx(log["total KV"], abs=caches * LOG_STEP), sizes
            assert output_bytes(model.info, sizes) / MIB == pytest.approx(log["CPU output"], abs=LOG_STEP), sizes
            compute = compute_bytes(model.info, model.weights, sizes, with_output=True) / MIB
            assert compute == pytest.approx(log["CPU compute"], rel=COMPUTE_TOLERANCE), sizes
    finally:
        capi.lib().llama_model_free(loaded)


def test_contexts_of_smollm2(smollm2: Path) -> None:
    check_contexts(smollm2, SIZES)


def test_contexts_of_gemma3(gemma3: Path) -> None:
    check_contexts(gemma3, SIZES)


SHAPES: dict[str, dict[str, Any]] = {
    "MHA": {"n_embd": 256, "n_head": 4, "n_head_kv": 4, "n_ff": 1024},
    "GQA": {"n_embd": 512, "n_head": 8, "n_head_kv": 2, "n_ff": 1536},
    "MQA": {"n_embd": 256, "n_head": 4, "n_head_kv": 1, "n_ff": 768},
    "MQA, tied": {"n_embd": 256, "n_head": 8, "n_head_kv": 1, "n_ff": 768, "tied": True},
    "biases": {"arch": "qwen2", "n_embd": 256, "n_head": 4, "n_head_kv": 2, "n_ff": 512},
    "normed heads": {"arch": "qwen3", "n_embd": 256, "n_head": 4, "n_head_kv": 2, "n_ff": 1024},
    "every other layer slides": {"arch": "gemma2", "n_embd": 256, "n_head": 4, "n_head_kv": 2, "n_ff": 1024},
    "five of six slide": {"arch": "gemma3", "n_embd": 256, "n_head": 4, "n_head_kv": 1, "n_ff": 1024},
    "experts": {"n_embd": 256, "n_head": 4, "n_head_kv": 2, "n_ff": 512, "n_expert": 8},
}
each_shape = pytest.mark.parametrize("shape", [pytest.param(s, id=name) for name, s in SHAPES.items()])


@each_shape
def test_contexts_of_tiny_models(tmp_path: Path, shape: dict[str, Any]) -> None:
    check_contexts(tiny_gguf(tmp_path / "tiny.gguf", n_layer=6, n_ctx_train=8192, **shape), SIZES)


@each_shape
@pytest.mark.parametrize("qtype", ["F32", "Q4_0"])
def test_weights_of_tiny_models(tmp_path: Path, shape: dict[str, Any], qtype: str) -> None:
    """Real loads, in the plain buffer and in the one where matrices are rearranged for the processor."""
    path = tiny_gguf(tmp_path / "tiny.gguf", n_layer=3, n_vocab=2048, qtype=qtype, **shape)
    weights, features = read_model(path).weights, capi.cpu_features()
    rest = [t for group in (*weights.layers, *weights.experts, weights.output) for t in group]
    held = host_bytes(weights.input, rest, weights.tied, frozenset(features))
    capi.lib().llama_model_free(load(path, allocate=True))
    log = logged()
    assert held.plain / MIB == pytest.approx(log.get("CPU model", 0.0), abs=LOG_STEP)
    assert held.repacked / MIB == pytest.approx(log.get("CPU_REPACK model", 0.0), abs=LOG_STEP)
    if qtype == "Q4_0" and "AVX2" in features and "REPACK" in features:
        assert held.repacked > 0


def test_real_allocation_is_what_a_dry_one_says(tmp_path: Path) -> None:
    """The other tests rest on `no_alloc`, which allocates nothing but counts all."""
    path = tiny_gguf(tmp_path / "tiny.gguf", arch="gemma3", n_layer=6, n_ctx_train=8192)
    dry, real = load(path, allocate=False), load(path, allocate=True)
    dry_log, real_log = context_log(dry, ContextSizes(4096)), context_log(real, ContextSizes(4096))
    for model in (dry, real):
        capi.lib().llama_model_free(model)
    assert real_log["CPU KV"] == pytest.approx(real_log["total KV"], abs=2 * LOG_STEP)
    for name in ("total KV", "CPU compute", "CPU output"):
        assert dry_log[name] == real_log[name]


@pytest.mark.parametrize(
    "write",
    [unusual.per_layer_heads, unusual.mla, unusual.recurrent, unusual.hybrid],
    ids=lambda write: write.__name__,
)
def test_contexts_of_unusual_architectures(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    check_contexts(
        write(tmp_path / "unusual.gguf"),
        (
            ContextSizes(2048),
            ContextSizes(4096, n_ubatch=128),
            ContextSizes(4096, n_seq_max=4, n_outputs=4),
            ContextSizes(4096, flash_attn=False),
            ContextSizes(4096, kv_type=("q8_0", "q8_0")),
        ),
    )
