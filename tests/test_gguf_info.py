"""ModelInfo from tiny headers of each architecture, and from the real model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmrun.cli.output import jsonable
from llmrun.errors import ModelFileError
from llmrun.gguf.header import open_header
from llmrun.gguf.info import ModelInfo, model_info
from llmrun.gguf.keys import Keys
from llmrun.gguf.layers import recurrent_state
from tests.tiny import CHATML, EOS, IM_END, N_VOCAB, tiny_gguf


def info(tmp_path: Path, **kwargs: Any) -> ModelInfo:
    return model_info(open_header(tiny_gguf(tmp_path / "m.gguf", **kwargs)))


def test_a_llama(tmp_path: Path) -> None:
    found = info(tmp_path)
    assert (found.arch, found.name, found.quant, found.license) == ("llama", "tiny llama 0", "F32", "mit")
    assert (found.n_layer, found.n_embd, found.n_vocab, found.n_ctx_train) == (2, 64, N_VOCAB, 2048)
    assert (found.n_expert, found.sliding_window, found.causal, found.pooling) == (0, 0, True, None)
    assert found.size_bytes == (tmp_path / "m.gguf").stat().st_size
    assert found.bits_per_weight == 32
    assert found.chat_template == CHATML
    first = found.layers[0]
    assert (first.n_head, first.n_head_kv, first.head_dim_k, first.head_dim_v, first.n_ff) == (4, 2, 16, 16, 128)
    assert (first.sliding, first.recurrent, first.has_kv) == (False, False, True)
    assert found.tokenizer is not None
    assert (found.tokenizer.model, found.tokenizer.pre) == ("gpt2", "default")
    assert (found.tokenizer.bos, found.tokenizer.eos, found.tokenizer.add_bos) == (EOS, IM_END, False)
    assert (found.rope.freq_base, found.rope.scaling, found.rope.n_dims) == (10000.0, "none", 16)


def test_parameters_and_bytes_add_up(tmp_path: Path) -> None:
    header = open_header(tiny_gguf(tmp_path / "m.gguf", n_expert=4, qtype="Q8_0"))
    found, weights = model_info(header), model_info(header).weights
    assert found.n_params == sum(int(np.prod(t.shape)) for t in header.tensors)
    total = weights.input_bytes + sum(weights.layer_bytes) + weights.output_bytes
    assert total == sum(t.n_bytes for t in header.tensors)
    assert not weights.tied
    assert weights.expert_bytes[0] == 3 * 4 * 64 * 128 // 32 * 34
    assert 8.5 < found.bits_per_weight < 9
    assert (found.n_expert, found.n_expert_used) == (4, 2)


def test_a_tied_matrix_counts_for_both_ends(tmp_path: Path) -> None:
    weights = info(tmp_path, tied=True).weights
    assert weights.tied
    assert weights.input_bytes == N_VOCAB * 64 * 4
    assert weights.output_bytes == N_VOCAB * 64 * 4 + 64 * 4


def test_windows(tmp_path: Path) -> None:
    gemma3 = info(tmp_path, arch="gemma3", n_layer=12)
    assert gemma3.sliding_window == 32
    assert [layer.sliding for layer in gemma3.layers] == [True, True, True, True, True, False] * 2
    gemma2 = info(tmp_path, arch="gemma2", n_layer=4, metadata={"gemma2.attention.sliding_window": None})
    assert gemma2.sliding_window == 4096
    assert [layer.sliding for layer in gemma2.layers] == [True, False, True, False]


def test_a_window_pattern_in_the_file_wins(tmp_path: Path) -> None:
    keys = {"gemma3.attention.sliding_window_pattern": [False, True, True]}
    assert [layer.sliding for layer in info(tmp_path, arch="gemma3", n_layer=3, metadata=keys).layers] == [
        False,
        True,
        True,
    ]
    keys = {"gemma3.attention.sliding_window_pattern": 2}
    assert [layer.sliding for layer in info(tmp_path, arch="gemma3", n_layer=3, metadata=keys).layers] == [
        True,
        False,
        True,
    ]


def test_a_window_that_llama_cpp_ignores(tmp_path: Path) -> None:
    found = info(tmp_path, metadata={"llama.attention.sliding_window": 4096})
    assert found.sliding_window == 0


def test_per_layer_heads(tmp_path: Path) -> None:
    keys = {"llama.attention.head_count_kv": [4, 1], "llama.feed_forward_length": [128, 256]}
    found = info(tmp_path, metadata=keys)
    assert [(layer.n_head_kv, layer.n_ff) for layer in found.layers] == [(4, 128), (1, 256)]


def test_latent_attention_caches_keys_alone(tmp_path: Path) -> None:
    keys = {"llama.attention.key_length": 24, "llama.attention.value_length": 16, "llama.attention.key_length_mla": 8}
    layer = info(tmp_path, metadata=keys).layers[0]
    assert (layer.head_dim_k, layer.head_dim_v) == (24, 0)


def test_prediction_heads_are_no_layers(tmp_path: Path) -> None:
    found = info(tmp_path, n_layer=3, metadata={"llama.nextn_predict_layers": 1})
    assert (found.n_layer, len(found.layers), len(found.weights.layer_bytes)) == (2, 2, 2)
    assert found.weights.layer_bytes[1] == 2 * found.weights.layer_bytes[0]


# Per recurrent layer and sequence, worked out from each model's published shape.
STATES = {
    "mamba": ({"ssm.conv_kernel": 4, "ssm.inner_size": 1536, "ssm.state_size": 16}, 3 * 1536, 16 * 1536),
    "mamba2": (
        {"ssm.conv_kernel": 4, "ssm.inner_size": 1536, "ssm.state_size": 128, "ssm.group_count": 1},
        3 * (1536 + 2 * 128),
        128 * 1536,
    ),
    "rwkv7": ({"wkv.head_size": 64}, 2 * 768, 768 * 64),
    "lfm2": ({"shortconv.l_cache": 3}, 2 * 768, 0),
    "kimi-linear": ({"kda.head_dim": 128, "ssm.conv_kernel": 4}, 3 * 3 * 12 * 128, 128 * 128 * 12),
    "llama": ({}, 0, 0),
}


@pytest.mark.parametrize("arch", STATES)
def test_recurrent_state(arch: str, tmp_path: Path) -> None:
    own, conv, state = STATES[arch]
    keys = {"general.architecture": arch, **{f"{arch}.{key}": value for key, value in own.items()}}
    header = open_header(tiny_gguf(tmp_path / "m.gguf"))._replace(metadata=keys)
    found = recurrent_state(Keys(header), n_embd=768, n_head=12)
    assert (found.conv, found.state) == (conv, state)


def test_hybrid_layers(tmp_path: Path) -> None:
    header = open_header(tiny_gguf(tmp_path / "m.gguf", n_layer=4))
    own = {"block_count": 4, "embedding_length": 64, "attention.head_count": 4, "attention.head_count_kv": 2}

    def flags(arch: str, **more: Any) -> list[tuple[bool, bool]]:
        metadata = {f"{arch}.{key}": value for key, value in {**own, **more}.items()}
        found = model_info(header._replace(metadata={**metadata, "general.architecture": arch}))
        return [(layer.recurrent, layer.has_kv) for layer in found.layers]

    assert flags("qwen3next") == [(True, False)] * 3 + [(False, True)]
    assert flags("falcon-h1") == [(True, True)] * 4
    assert flags("mamba", **{"attention.head_count": 0, "attention.head_count_kv": 0}) == [(True, False)] * 4
    assert flags("gemma4", **{"attention.shared_kv_layers": 1}) == [(False, True)] * 3 + [(False, False)]


def test_embedding_model(tmp_path: Path) -> None:
    found = info(tmp_path, arch="bert")
    assert (found.causal, found.pooling, found.chat_template) == (False, "mean", None)


def test_named_templates_and_sampling(tmp_path: Path) -> None:
    keys = {
        "tokenizer.chat_templates": ["tool_use", "rag"],
        "tokenizer.chat_template.tool_use": "T",
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
        "general.sampling.sequence": "kpt",
    }
    found = info(tmp_path, metadata=keys)
    assert found.named_templates == {"tool_use": "T"}
    assert found.sampling == {"temp": pytest.approx(0.6), "top_k": 20, "sequence": "kpt"}


@pytest.mark.parametrize(("file_type", "quant"), [(15, "Q4_K_M"), (1024 + 7, "Q8_0"), (999, "F32"), (None, "F32")])
def test_quant_is_the_file_type_or_what_most_bytes_are(file_type: int | None, quant: str, tmp_path: Path) -> None:
    assert info(tmp_path, metadata={"general.file_type": file_type}).quant == quant


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("llama.block_count", "two", "llama.block_count is 'two', not a count"),
        ("llama.rope.freq_base", "x", "llama.rope.freq_base is 'x', not a number"),
        ("tokenizer.ggml.add_bos_token", 1, "tokenizer.ggml.add_bos_token is 1, not true or false"),
        ("tokenizer.chat_template", 7, "tokenizer.chat_template is 7, not a text"),
        ("tokenizer.ggml.tokens", [1, 2], r"tokenizer.ggml.tokens is NumberArray\(2 i32\), not an array of texts"),
        ("llama.attention.head_count", [4, 4, 4], r"NumberArray\(3 i32\), not 2 counts \(one for each layer\)"),
    ],
)
def test_wrong_types_name_the_key(key: str, value: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=f"m.gguf: metadata key .*{expected}"):
        info(tmp_path, metadata={key: value})


def test_an_empty_header_has_an_info(tmp_path: Path) -> None:
    header = open_header(tiny_gguf(tmp_path / "m.gguf"))._replace(metadata={}, tensors=())
    found = model_info(header)
    assert (found.arch, found.quant, found.n_layer, found.n_params, found.layers) == ("", "unknown", 0, 0, ())


def test_info_is_json(tmp_path: Path) -> None:
    assert json.loads(json.dumps(jsonable(info(tmp_path))))["layers"][0]["n_head"] == 4


def test_parts_count_together(tmp_path: Path) -> None:
    whole = open_header(tiny_gguf(tmp_path / "m.gguf"))
    first = whole._replace(tensors=whole.tensors[:5])
    second = whole._replace(tensors=whole.tensors[5:])
    found = model_info(first, second)
    assert found.n_params == model_info(whole).n_params
    assert found.size_bytes == 2 * whole.file_size


def test_the_real_model(smollm2: Path) -> None:
    found = model_info(open_header(smollm2))
    assert (found.arch, found.quant, found.n_params, found.size_bytes) == ("llama", "Q4_1", 134_515_008, 98_362_432)
    assert (found.n_layer, found.n_embd, found.n_vocab, found.n_ctx_train) == (30, 576, 49152, 8192)
    assert (found.layers[0].n_head, found.layers[0].n_head_kv, found.license) == (9, 3, "apache-2.0")
    assert found.weights.tied
