"""The type tables against the gguf package, and quant names in the spellings people use."""

import gguf
import pytest

from llmrun.gguf.types import FILE_TYPES, TENSOR_TYPES, find_file_type, parse_quant


def test_tensor_types_are_those_of_the_gguf_package() -> None:
    theirs = {int(type): (type.name, *gguf.GGML_QUANT_SIZES[type]) for type in gguf.GGMLQuantizationType}
    # block_q8_1 has two half floats; gguf 0.19 counts them as floats (40 bytes), ggml-common.h has 36.
    theirs[9] = ("Q8_1", 32, 36)
    ours = {type.id: (type.name, type.block_size, type.block_bytes) for type in TENSOR_TYPES.values()}
    assert {id: ours[id] for id in theirs} == theirs


def test_file_types_are_those_of_the_gguf_package() -> None:
    theirs = {
        int(type): type.name.removeprefix("MOSTLY_").removeprefix("ALL_")
        for type in gguf.LlamaFileType
        if type.name != "GUESSED"
    }
    assert {id: FILE_TYPES[id] for id in theirs} == theirs


def test_bits_per_weight() -> None:
    bits = {type.name: type.bits_per_weight for type in TENSOR_TYPES.values()}
    assert (bits["F16"], bits["Q8_0"], bits["Q4_K"], bits["Q6_K"], bits["IQ2_XXS"]) == (16, 8.5, 4.5, 6.5625, 2.0625)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("q4_k_m", "Q4_K_M"),
        ("Q4KM", "Q4_K_M"),
        ("q4-k-m", "Q4_K_M"),
        ("Q4_K", "Q4_K_M"),
        ("Q4_K_M.gguf", "Q4_K_M"),
        (" q8_0 ", "Q8_0"),
        ("UD-Q4_K_XL", "UD-Q4_K_XL"),
        ("ud_q4kxl", "UD-Q4_K_XL"),
        ("UD-IQ2_M", "UD-IQ2_M"),
        ("i1-Q4_K_S", "I1-Q4_K_S"),
        ("iq4nl", "IQ4_NL"),
        ("fp16", "F16"),
        ("bf16", "BF16"),
        ("mxfp4", "MXFP4_MOE"),
        ("tq1_0", "TQ1_0"),
    ],
)
def test_parse_quant(spelling: str, name: str) -> None:
    assert parse_quant(spelling) == name


@pytest.mark.parametrize("text", ["", "latest", "Q9_K", "4bit", "instruct", "UD-", "Q4_K_M_extra"])
def test_what_is_no_quant(text: str) -> None:
    assert parse_quant(text) is None


def test_every_name_parses_to_itself() -> None:
    assert all(parse_quant(name) == name for name in FILE_TYPES.values())


def test_find_file_type() -> None:
    assert find_file_type("q4_k_m") == 15
    assert find_file_type("UD-Q4_K_XL") is None
    assert find_file_type("nonsense") is None
