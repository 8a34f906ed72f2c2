"""What lies beside models is told apart (GGUF-06), and parts of split models are recognised (GGUF-05)."""

from pathlib import Path
from typing import Any

import gguf
import pytest

from llmrun.errors import ModelFileError
from llmrun.gguf.header import Header, open_header, read_header
from llmrun.gguf.kind import Kind, Split, kind, refuse_non_model, split
from tests import gguf_bytes as raw
from tests.tiny import tiny_gguf

ONE_TENSOR = [raw.tensor("t", (8,))]


def header(*pairs: bytes, tensors: bool = True, name: str = "x.gguf") -> Header:
    data = raw.file(pairs, ONE_TENSOR if tensors else [], bytes(32) if tensors else b"")
    return read_header(raw.reader(data), len(data), name)


def arch(name: str) -> bytes:
    return raw.text_pair("general.architecture", name)


NOT_MODELS = {
    "mmproj": (header(arch("clip"), raw.text_pair("general.type", "mmproj")), Kind.PROJECTOR),
    "mmproj_by_arch": (header(arch("clip")), Kind.PROJECTOR),
    "lora": (header(arch("llama"), raw.text_pair("general.type", "adapter")), Kind.ADAPTER),
    "lora_by_key": (header(arch("llama"), raw.text_pair("adapter.type", "lora")), Kind.ADAPTER),
    "control_vector": (header(arch("controlvector")), Kind.CONTROL_VECTOR),
    "imatrix": (header(raw.text_pair("general.type", "imatrix")), Kind.IMATRIX),
    "eagle3": (header(arch("eagle3")), Kind.DRAFT),
    "mtp": (
        header(arch("qwen3"), raw.u32_pair("qwen3.block_count", 1), raw.u32_pair("qwen3.nextn_predict_layers", 1)),
        Kind.DRAFT,
    ),
    "vocabulary": (
        header(arch("llama"), raw.text_pair("tokenizer.ggml.model", "gpt2"), tensors=False),
        Kind.VOCABULARY,
    ),
}


@pytest.mark.parametrize("case", NOT_MODELS)
def test_what_is_no_model(case: str) -> None:
    found, expected = NOT_MODELS[case]
    assert kind(found) is expected
    with pytest.raises(ModelFileError, match=f"x.gguf is {expected.value}, not a language model") as caught:
        refuse_non_model(found)
    assert caught.value.hint


def test_gguf_06_a_projector_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "mmproj-x.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_tensor_info("v.patch_embd.weight", [4], None, 16, raw_dtype=gguf.GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with pytest.raises(ModelFileError) as caught:
        refuse_non_model(open_header(path))
    assert caught.value.message == "mmproj-x.gguf is a vision projector, not a language model"
    assert caught.value.hint == "use the model file beside it, whose name has no mmproj"


def test_a_model_is_a_model(tiny_model: Path) -> None:
    assert kind(open_header(tiny_model)) is Kind.MODEL
    assert split(open_header(tiny_model)) is None


def part_keys(no: Any = 0, count: Any = 3, n_tensors: Any = 21) -> dict[str, Any]:
    types = (gguf.GGUFValueType.UINT16, gguf.GGUFValueType.UINT16, gguf.GGUFValueType.INT32)
    names = ("split.no", "split.count", "split.tensors.count")
    values = zip(names, (no, count, n_tensors), types, strict=True)
    return {key: value if isinstance(value, (tuple, str)) else (value, type) for key, value, type in values}


def test_gguf_05_a_part_says_which_it_is(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m-00002-of-00003.gguf", metadata=part_keys(no=1))
    assert split(open_header(path)) == Split(no=1, count=3, n_tensors=21)


def test_gguf_05_a_first_part_may_have_no_tensors(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", metadata=part_keys(), tensors=lambda name, array: None)
    assert kind(open_header(path)) is Kind.MODEL


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (part_keys(no=(1, gguf.GGUFValueType.UINT32)), "split.no is 1, not of type u16"),
        (part_keys(count="3"), "split.count is '3', not a count"),
        (part_keys(n_tensors=(21, gguf.GGUFValueType.UINT32)), "split.tensors.count is 21, not of type i32"),
        (part_keys(n_tensors=-1), "split.tensors.count is -1, not a count"),
        (part_keys(no=3), "split.no is 3, of 3 parts"),
        ({**part_keys(), "split.no": None}, "split.no is None, not of type u16"),
    ],
)
def test_gguf_05_split_keys_that_cannot_be(keys: dict[str, Any], expected: str, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", metadata=keys)
    with pytest.raises(ModelFileError, match=expected):
        split(open_header(path))


@pytest.mark.parametrize("n_trailing", [0, 7])
def test_gguf_05_parts_joined_with_cat_are_recognised(n_trailing: int, tmp_path: Path) -> None:
    parts = [tiny_gguf(tmp_path / f"{no}.gguf", metadata=part_keys(no=no)).read_bytes() for no in range(3)]
    joined = tmp_path / "joined.gguf"
    joined.write_bytes(parts[0] + bytes(n_trailing) + parts[1] + parts[2])
    with pytest.raises(ModelFileError) as caught:
        open_header(joined)
    assert "joined.gguf is 3 parts of a split model joined byte by byte" in caught.value.message
    assert "llama-gguf-split --merge" in caught.value.hint


def test_trailing_bytes_alone_are_no_join(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", metadata=part_keys())
    path.write_bytes(path.read_bytes() + bytes(100))
    assert open_header(path).complete
