"""What llama.cpp would abort on is refused before, by its name, and good models are not.

The classes are those that were seen to end in SIGABRT or SIGSEGV with llama-cpp-python 0.3.36. The mutations run in
processes of their own, with ggml's abort callback as the engine sets it: no signal, no hang.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llmrun.errors import ModelFileError
from llmrun.gguf.check import check_complete, check_model
from llmrun.gguf.header import open_header
from llmrun.gguf.types import TENSOR_TYPES
from tests import mutations
from tests.test_tiny import VARIANTS
from tests.tiny import N_VOCAB, byte_characters, retype, tiny_gguf

NAN = float("nan")
U16, U32, I32 = gguf.GGUFValueType.UINT16, gguf.GGUFValueType.UINT32, gguf.GGUFValueType.INT32
TOKENS = "tokenizer.ggml.tokens"
FEW = {TOKENS: ["a", "b"], "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}

# Metadata of a llama that is refused, and what the message says.
REFUSED: dict[str, tuple[Mapping[str, Any], str]] = {
    "no_layers": ({"llama.block_count": 0}, "llama.block_count is 0"),
    "absurd_layers": ({"llama.block_count": 2**31}, "llama.block_count is 2147483648; llama.cpp takes 1 to 512"),
    "layers_missing": ({"llama.block_count": None}, "llama.block_count is missing"),
    "more_drafting_than_layers": ({"llama.nextn_predict_layers": 3}, "nextn_predict_layers is more than the 2"),
    "no_context": ({"llama.context_length": 0}, "llama.context_length is 0"),
    "absurd_context": ({"llama.context_length": 2**32 - 1}, "llama.context_length is 4294967295"),
    "no_width": ({"llama.embedding_length": 0}, "llama.embedding_length is 0"),
    "absurd_width": ({"llama.feed_forward_length": 2**31}, "llama.feed_forward_length is 2147483648"),
    "absurd_experts": ({"llama.expert_count": 5000, "llama.expert_used_count": 2}, "llama.expert_count is 5000"),
    "no_expert_used": ({"llama.expert_count": 4}, "llama.expert_used_count is 0, of 4 experts"),
    "more_used_than_experts": ({"llama.expert_used_count": 2}, "llama.expert_used_count is 2, of 0 experts"),
    "expert_groups": (
        {"llama.expert_count": 4, "llama.expert_used_count": 2, "llama.expert_group_count": 3},
        "llama.expert_group_count is 3",
    ),
    "expert_groups_used": (
        {"llama.expert_count": 4, "llama.expert_used_count": 2, "llama.expert_group_count": 2},
        "llama.expert_group_used_count is 0, of 2 groups",
    ),
    "heads_that_do_not_divide": (
        {"llama.attention.head_count_kv": 3},
        "head_count_kv is 3, which does not divide the 4",
    ),
    "absurd_heads": ({"llama.attention.head_count": 2**20}, "llama.attention.head_count is 1048576"),
    "more_heads_than_width": (
        {"llama.attention.head_count": 128},
        "llama.attention.key_length is None, with 128 heads",
    ),
    "keys_unlike_values": ({"llama.attention.key_length": 32}, "key_length is 32, and for values it is 16"),
    "rotation_beyond_head": ({"llama.rope.dimension_count": 256}, "rope.dimension_count is 256, in heads of 16"),
    "rotation_of_part": ({"llama.rope.dimension_count": 8}, "rope.dimension_count is 8, in heads of 16"),
    "no_rotation": ({"llama.rope.dimension_count": 0}, "rope.dimension_count is 0"),
    "unknown_scaling": ({"llama.rope.scaling.type": "cubic"}, "rope.scaling.type is 'cubic', none of none, linear"),
    "nan_epsilon": ({"llama.attention.layer_norm_rms_epsilon": NAN}, "layer_norm_rms_epsilon is not a number"),
    "negative_epsilon": ({"llama.attention.layer_norm_rms_epsilon": -1e-5}, "epsilon is -1e-05, not between 0 and 1"),
    "zero_epsilon": ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "epsilon is 0, not between 0 and 1"),
    "nan_rope_base": ({"llama.rope.freq_base": NAN}, "llama.rope.freq_base is not a number"),
    "nan_in_an_array": ({"llama.some_scales": [1.0, NAN]}, "llama.some_scales holds what is not a number"),
    "unknown_pooling": ({"llama.pooling_type": 9}, "llama.pooling_type is 9"),
    "more_out_than_in": ({"llama.embedding_length_out": 128}, "llama.embedding_length_out is 128, of 64"),
    "absurd_window": ({"llama.attention.sliding_window": 2**31}, "sliding_window is 2147483648"),
    "no_tokenizer": ({"tokenizer.ggml.model": None}, "holds no tokenizer .*is missing"),
    "tokenizer_none": ({"tokenizer.ggml.model": "none"}, "holds no tokenizer"),
    "no_tokens": ({TOKENS: None}, "tokenizer.ggml.tokens is missing or empty"),
    "tokens_all_the_same": ({TOKENS: ["same"] * N_VOCAB}, "has 267 tokens with the text of another, of 268"),
    "two_tokens_the_same": ({TOKENS: [*map(str, range(N_VOCAB - 1)), "0"]}, "has 1 tokens with the text of another"),
    "the_same_up_to_nul": ({TOKENS: [*map(str, range(N_VOCAB - 1)), "0\0"]}, "has 1 tokens with the text of another"),
    "named_as_an_empty_one": ({TOKENS: ["", "[EMPTY_0]", *map(str, range(N_VOCAB - 2))]}, "has 1 tokens"),
    "types_too_few": (
        {"tokenizer.ggml.token_type": [1, 1]},
        r"token_type is NumberArray\(2 i32\), not one number for",
    ),
    "types_of_text": ({"tokenizer.ggml.token_type": ["x"] * N_VOCAB}, "token_type is StringArray"),
    "scores_too_few": ({"tokenizer.ggml.scores": [1.0]}, "tokenizer.ggml.scores is NumberArray"),
    "bos_out_of_range": ({"tokenizer.ggml.bos_token_id": N_VOCAB}, "bos_token_id is 268, of 268 tokens"),
    "eos_out_of_range": ({"tokenizer.ggml.eos_token_id": 99999}, "eos_token_id is 99999, of 268 tokens"),
    "bos_of_none": (
        {
            "tokenizer.ggml.model": "t5",
            "tokenizer.ggml.bos_token_id": None,
            "tokenizer.ggml.add_bos_token": True,
        },
        "bos_token_id is missing, and a prompt needs that token",
    ),
    "bert_without_start": (
        {"tokenizer.ggml.model": "bert", **FEW, "tokenizer.ggml.bos_token_id": None},
        "bos_token_id is missing, and a prompt needs that token",
    ),
    "bert_without_separator": ({"tokenizer.ggml.model": "bert", **FEW}, "seperator_token_id is missing"),
    "sentencepiece_without_bytes": ({"tokenizer.ggml.model": "llama"}, "has no token for 162 of the 256 bytes"),
    "rwkv_without_newline": ({"tokenizer.ggml.model": "rwkv"}, "has no token for a line break"),
    "split_key_of_wrong_type": ({"split.count": (3, U32), "split.no": (0, U16)}, "split.count is 3, not of type u16"),
    "arch_of_wrong_type": (
        {"general.type": "model", "llama.block_count": "2"},
        "llama.block_count is '2', not a count",
    ),
}


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        check_model(open_header(path))
    assert caught.value.hint
    return caught.value.message


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, tmp_path: Path) -> None:
    metadata, expected = REFUSED[case]
    path = tiny_gguf(tmp_path / "m.gguf", metadata=metadata)
    with pytest.raises(ModelFileError, match=expected):
        check_model(open_header(path))


@pytest.mark.parametrize("arch", ["", "lla\0ma", "\x1b[31m"])
def test_an_architecture_that_is_no_name(arch: str, tiny_model: Path) -> None:
    header = open_header(tiny_model)
    metadata = {**header.metadata, "general.architecture": arch}
    with pytest.raises(ModelFileError, match=r"general\.architecture is") as caught:
        check_model(header._replace(metadata=metadata))
    assert "\x1b" not in caught.value.message


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.float64])
def test_weights_that_are_no_weights(dtype: Any, tmp_path: Path) -> None:
    def other(name: str, array: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        return array.astype(dtype) if name == "blk.0.ffn_up.weight" else array

    message = refusal(tiny_gguf(tmp_path / "m.gguf", tensors=other))
    assert message.startswith("m.gguf: tensor blk.0.ffn_up.weight is of type ")
    assert message.endswith(", in which llama.cpp has no weights")


def test_weights_in_q8_1(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf")
    retype(path, "blk.0.attn_q.weight", 9, 64 * 2 * 36)
    assert "tensor blk.0.attn_q.weight is of type Q8_1, in which llama.cpp has no weights" in refusal(path)


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("llama", "blk.1.attn_norm.weight"),
        ("llama", "output_norm.weight"),
        ("qwen2", "blk.0.attn_q.bias"),
        ("qwen3", "blk.0.attn_k_norm.weight"),
        ("gemma3", "blk.0.post_ffw_norm.weight"),
        ("bert", "token_types.weight"),
    ],
)
def test_what_must_be_f32(arch: str, name: str, tmp_path: Path) -> None:
    def other(tensor: str, array: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        return array.astype(np.float16) if tensor == name else array

    message = refusal(tiny_gguf(tmp_path / "m.gguf", arch=arch, tensors=other))
    assert f"tensor {name} is of type F16; llama.cpp computes with it only in F32" in message


def test_a_table_of_ids_is_no_weight(tiny_model: Path) -> None:
    header = open_header(tiny_model)
    ids = header.tensors[0]._replace(name="d2t", type=TENSOR_TYPES[27])
    check_model(header._replace(tensors=(*header.tensors, ids)))
    other = ids._replace(name="d2x")
    with pytest.raises(ModelFileError, match="d2x is of type I64"):
        check_model(header._replace(tensors=(*header.tensors, other)))


def test_an_empty_tensor(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", tensors=lambda name, array: array[:0] if name == "output.weight" else array)
    assert "tensor output.weight is empty" in refusal(path)


def test_no_tensors(tmp_path: Path) -> None:
    keys = {"split.no": (0, U16), "split.count": (1, U16), "split.tensors.count": (0, I32)}
    path = tiny_gguf(tmp_path / "m.gguf", tensors=lambda name, array: None, metadata=keys)
    assert "holds no tensors" in refusal(path)


def test_gguf_02_incomplete_says_what_was_expected(tmp_path: Path, tiny_model: Path) -> None:
    data = tiny_model.read_bytes()
    path = tmp_path / "half.gguf"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelFileError) as caught:
        check_complete(open_header(path))
    assert caught.value.message == (
        f"half.gguf is incomplete: expected {len(data)} bytes by its own header, has {len(data) // 2}"
    )
    assert refusal(path) == caught.value.message


def test_an_incomplete_part_is_named(tmp_path: Path, tiny_model: Path) -> None:
    header = open_header(tiny_model)
    part = header._replace(name="m-00002-of-00002.gguf", file_size=header.file_size - 1)
    with pytest.raises(ModelFileError, match=r"m-00002-of-00002\.gguf is incomplete"):
        check_model(header, part)


@pytest.mark.parametrize("variant", VARIANTS)
def test_good_models_pass(variant: str, tmp_path: Path) -> None:
    check_model(open_header(tiny_gguf(tmp_path / "m.gguf", **VARIANTS[variant])))


GOOD = {
    "unlisted_scaling": {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0},
    "empty_tokens": {TOKENS: ["", "", *map(str, range(N_VOCAB - 2))]},
    "no_bos_as_minus_one": {"tokenizer.ggml.bos_token_id": 2**32 - 1},
    "no_eos_at_all": {"tokenizer.ggml.eos_token_id": None},
    "heads_per_layer": {"llama.attention.head_count_kv": [2, 2]},
    "unknown_keys": {"llama.something_new": [1, 2], "other.key": NAN},
    "long_context": {"llama.context_length": 10_485_760},
}


@pytest.mark.parametrize("case", GOOD)
def test_odd_and_good_passes(case: str, tmp_path: Path) -> None:
    check_model(open_header(tiny_gguf(tmp_path / "m.gguf", metadata=GOOD[case])))


def test_an_unknown_architecture_is_left_to_the_library(tmp_path: Path, tiny_model: Path) -> None:
    header = open_header(tiny_model)
    metadata = {key.replace("llama.", "novel."): value for key, value in header.metadata.items()}
    check_model(header._replace(metadata={**metadata, "general.architecture": "novel"}))


def test_sentencepiece_with_byte_tokens_passes(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in byte_characters())]
    tokens += [f"t{i}" for i in range(N_VOCAB - len(tokens))]
    keys = {"tokenizer.ggml.model": "llama", TOKENS: tokens, "tokenizer.ggml.scores": [0.0] * N_VOCAB}
    check_model(open_header(tiny_gguf(tmp_path / "m.gguf", metadata=keys)))


def test_the_real_model_passes(smollm2: Path) -> None:
    check_model(open_header(smollm2))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[mutations.Outcome]:
    folder = tmp_path_factory.mktemp("mutations")
    return mutations.load_all([mutations.mutate(seed, folder) for seed in range(200)])


def test_200_mutations_end_by_no_signal_and_no_hang(outcomes: list[mutations.Outcome]) -> None:
    bad = [outcome for outcome in outcomes if outcome.end.startswith(("signal", "hang", "status"))]
    assert not bad
    assert len(outcomes) == 200


def test_the_mutations_reach_every_end(outcomes: list[mutations.Outcome]) -> None:
    ends = Counter(outcome.end for outcome in outcomes)
    assert min(ends[end] for end in ("ok", "refused", "failed")) > 10, ends


def test_the_abort_callback_turns_an_assertion_into_one_line(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", metadata=REFUSED["tokens_all_the_same"][0])
    good = tiny_gguf(tmp_path / "good.gguf")
    ends = mutations.load_all([good, path, good], checked=False)
    assert [outcome.end for outcome in ends] == ["ok", "aborted", "ok"]
    assert "GGML_ASSERT(id_to_token.size() == token_to_id.size()) failed" in ends[1].detail
