"""Which layers look back on a window only, against llama.cpp, which logs it before it misses the tensors."""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llmrun.engine import capi
from llmrun.gguf.header import open_header
from llmrun.gguf.info import model_info
from llmrun.gguf.layers import _PATTERN_ONLY, _WINDOWS

# Keys without which one architecture or another is refused before its layers are assigned.
COMMON: dict[str, Any] = {
    "context_length": 4096, "embedding_length": 256, "feed_forward_length": 512, "vocab_size": 256,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5, "attention.key_length_swa": 64, "attention.value_length_swa": 64,
    "attention.scale": 1.0, "rope.dimension_count": 64, "rope.freq_base": 1e4, "rope.freq_base_swa": 1e4,
    "logit_scale": 1.0, "expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 64,
    "expert_shared_feed_forward_length": 64, "expert_gating_func": 1, "expert_shared_count": 1,
    "expert_weights_scale": 1.0, "expert_weights_norm": True, "interleave_moe_layer_step": 1,
    "leading_dense_block_count": 1, "embedding_length_per_layer_input": 32, "shortconv.l_cache": 3,
}  # fmt: skip
# They want a dozen keys more, of no use to any other.
OWN_KEYS = {"deepseek4", "dots3note", "maple"}


def write_header(path: Path, arch: str, keys: dict[str, Any]) -> None:
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {**COMMON, **keys}.items():
        if isinstance(value, list):
            writer.add_array(f"{arch}.{key}", value)
        elif isinstance(value, bool):
            writer.add_bool(f"{arch}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{arch}.{key}", value)
        else:
            writer.add_uint32(f"{arch}.{key}", value)
    writer.add_tokenizer_model("none")
    writer.add_tensor("token_embd.weight", np.zeros((256, 256), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_layers(path: Path) -> tuple[list[bool], int]:
    """For each layer whether it slides, and the window, as llama.cpp logs them."""
    lib = capi.lib()
    capi.log.lines.clear()
    assert not lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    log = "".join(text for _, text in capi.log.lines)
    layers = re.findall(r"layer +\d+ assigned to device CPU, is_swa = (\d)", log)
    window = re.search(r"n_swa += (\d+)", log)
    assert layers and window, capi.log.errors()
    return [layer == "1" for layer in layers[:-1]], int(window.group(1))  # the last is the output


@pytest.mark.parametrize("n_layer", [14, 64])
@pytest.mark.parametrize("arch", sorted({*_WINDOWS, *_PATTERN_ONLY, "llama", "phi3", "qwen3"} - OWN_KEYS))
def test_sliding_layers(tmp_path: Path, arch: str, n_layer: int) -> None:
    keys: dict[str, Any] = {"block_count": n_layer, "attention.sliding_window": 32}
    if arch in _PATTERN_ONLY:
        keys["attention.sliding_window_pattern"] = [layer % 3 != 1 for layer in range(n_layer)]
    path = tmp_path / "header.gguf"
    write_header(path, arch, keys)
    sliding, window = llama_layers(path)
    info = model_info(open_header(path))
    assert [layer.sliding for layer in info.layers] == sliding
    if any(sliding):
        assert info.sliding_window == window
