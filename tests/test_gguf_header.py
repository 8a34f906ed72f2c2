"""The header reader: against the gguf package as oracle, and against files that lie (SEC-02, GGUF-02)."""

import math
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llmrun.errors import ModelFileError
from llmrun.gguf.header import open_header, read_header
from llmrun.gguf.values import NumberArray, StringArray
from tests import gguf_bytes as raw
from tests.tiny import ARCHS, tiny_gguf

SCALARS = {
    "UINT8": 255,
    "INT8": -128,
    "UINT16": 65535,
    "INT16": -32768,
    "UINT32": 2**32 - 1,
    "INT32": -(2**31),
    "FLOAT32": 0.5,
    "BOOL": True,
    "UINT64": 2**64 - 1,
    "INT64": -(2**63),
    "FLOAT64": math.pi,
    "STRING": "naïve 東京 \N{ROCKET}",
}


def refusal(data: bytes, size: int | None = None) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        read_header(raw.reader(data), len(data) if size is None else size, "x.gguf")
    return caught.value


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, (NumberArray, StringArray)) else value


@pytest.mark.parametrize("arch", ARCHS)
def test_agrees_with_the_gguf_package(arch: str, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", arch=arch, qtype="Q8_0")
    ours, theirs = open_header(path), gguf.GGUFReader(path)
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert {key: plain(value) for key, value in ours.metadata.items()} == {
        name: field.contents() for name, field in fields.items()
    }
    assert {key: ours.value_types[key] for key in fields} == {name: int(f.types[-1]) for name, f in fields.items()}
    assert [(t.name, list(t.shape), t.type.id, ours.data_offset + t.offset, t.n_bytes) for t in ours.tensors] == [
        (t.name, [int(n) for n in t.shape], int(t.tensor_type), t.data_offset, t.n_bytes) for t in theirs.tensors
    ]
    assert ours.complete
    assert ours.expected_size == ours.file_size == path.stat().st_size
    assert ours.version == 3


def test_every_type_of_value(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "v.gguf", "test")
    for name, value in SCALARS.items():
        type = gguf.GGUFValueType[name]
        writer.add_key_value(f"one.{name}", value, type)
        writer.add_key_value(f"many.{name}", [value, value], gguf.GGUFValueType.ARRAY, sub_type=type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    header = open_header(tmp_path / "v.gguf")
    for name, value in SCALARS.items():
        assert header.metadata[f"one.{name}"] == value
        assert plain(header.metadata[f"many.{name}"]) == [value, value]
        assert header.value_types[f"one.{name}"] == header.value_types[f"many.{name}"] == gguf.GGUFValueType[name]


def test_arrays_are_sequences() -> None:
    strings = raw.pair("s", raw.ARRAY, struct.pack("<IQ", raw.STRING, 3) + b"".join(map(raw.text, ("a", "", "ccc"))))
    numbers = raw.pair("n", raw.ARRAY, struct.pack("<IQ3I", raw.UINT32, 3, 7, 8, 9))
    data = raw.file([strings, numbers, raw.u32_pair("after", 1)])
    header = read_header(raw.reader(data), len(data), "x.gguf")
    texts, counts = header.metadata["s"], header.metadata["n"]
    assert isinstance(texts, StringArray)
    assert isinstance(counts, NumberArray)
    assert (len(texts), texts[2], texts[:2], "ccc" in texts) == (3, "ccc", ("a", ""), True)
    assert texts.encoded == (b"a", b"", b"ccc")
    assert (len(counts), counts[-1], counts[1:], sum(counts)) == (3, 9, (8, 9), 24)
    assert (repr(texts), repr(counts)) == ("StringArray(3 strings)", "NumberArray(3 u32)")
    assert header.metadata["after"] == 1


@pytest.mark.parametrize(
    "texts",
    [
        [b"a"],
        [b"", b"a"],
        [b"a", b"", b""],
        [b"a" * 255, b"b" * 256, b"c" * 70000],
        [b"x\0", b"\0" * 7, b"\0" * 20, b"y"],
        [b"a" * 256 + b"\0" * 7, b"\x01\0\0\0\0\0\0\0b"],
        [b"\x01" + b"\0" * 7 + b"a", b"b"],
        [b"\0" + b"a" * 256],
        [str(i).encode() for i in range(1000)],
    ],
)
def test_strings_of_any_bytes(texts: list[bytes]) -> None:
    array = struct.pack("<IQ", raw.STRING, len(texts)) + b"".join(map(raw.text, texts))
    data = raw.file([raw.pair("s", raw.ARRAY, array)])
    read = read_header(raw.reader(data), len(data), "x.gguf").metadata["s"]
    assert isinstance(read, StringArray)
    assert list(read.encoded) == texts


def test_empty_arrays_and_no_tensors() -> None:
    data = raw.file([raw.pair("s", raw.ARRAY, struct.pack("<IQ", raw.STRING, 0))])
    header = read_header(raw.reader(data), len(data), "x.gguf")
    assert plain(header.metadata["s"]) == []
    assert header.tensors == ()
    assert header.complete


def test_text_that_is_not_utf8_costs_nothing_else() -> None:
    pairs = [raw.text_pair("bad", b"caf\xe9"), raw.text_pair("good", "é \ufffd")]
    data = raw.file(pairs)
    header = read_header(raw.reader(data), len(data), "x.gguf")
    assert header.metadata == {"bad": "caf\ufffd", "good": "é \ufffd"}
    assert header.not_utf8 == ("bad",)


def test_version_2_reads_as_3() -> None:
    data = raw.file([raw.u32_pair("a", 1)], version=2)
    assert read_header(raw.reader(data), len(data), "x.gguf").metadata == {"a": 1}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (1, "version 1; versions 2 and 3 are read"),
        (0x03000000, "big-endian"),
        (0, "version 0"),
        (4, "version 4"),
        (0xFFFFFFFF, "version 4294967295"),
    ],
)
def test_other_versions_are_refused(version: int, expected: str) -> None:
    assert expected in refusal(raw.file(version=version)).message


def test_remote_header_is_read_in_steps() -> None:
    tokens = b"".join(raw.text(f"token {i:06}") for i in range(160_000))
    pairs = [raw.pair("tokens", raw.ARRAY, struct.pack("<IQ", raw.STRING, 160_000) + tokens)]
    data = raw.file(pairs, [raw.tensor("t", (1 << 21,))], bytes(8 << 20))
    calls: list[tuple[int, int]] = []
    header = read_header(raw.reader(data, calls), len(data), "m.gguf")
    assert header.data_offset > 3 << 20
    assert plain(header.metadata["tokens"])[-1] == "token 159999"
    assert calls == [(0, 1 << 20), (1 << 20, 1 << 20), (2 << 20, 2 << 20)], "the data is not asked for"


def test_a_short_answer_is_no_endless_loop() -> None:
    data = raw.file([raw.text_pair("a", "b" * 100)])
    assert "incomplete" in refusal(data[:40], len(data)).message


HUGE_STRING = struct.pack("<Q", 2**62)
T = raw.tensor
SEC_02 = {
    "key_count": raw.file(n_pairs=2**60),
    "tensor_count": raw.file(n_tensors=2**60),
    "string_length": raw.file([raw.pair("k", raw.STRING, HUGE_STRING)]),
    "key_length": raw.file([HUGE_STRING + bytes(32)]),
    "array_length": raw.file([raw.pair("k", raw.ARRAY, struct.pack("<IQ", raw.UINT32, 2**61))]),
    "array_of_strings_length": raw.file([raw.pair("k", raw.ARRAY, struct.pack("<IQ", raw.STRING, 2**61))]),
    "string_in_array": raw.file(
        [raw.pair("k", raw.ARRAY, struct.pack("<IQ", raw.STRING, 2) + HUGE_STRING + bytes(64))]
    ),
    "many_strings": raw.file([raw.pair("k", raw.ARRAY, struct.pack("<IQ", raw.STRING, 1 << 23) + bytes(8 << 23))]),
    "tensor_dims": raw.file(tensors=[raw.text("t") + struct.pack("<I", 2**31) + bytes(64)]),
    "five_dims": raw.file(tensors=[T("t", (1, 1, 1, 1, 1))], data=bytes(32)),
    "dims_wrap_64_bits": raw.file(tensors=[T("t", (2**32, 2**32))], data=bytes(32)),
    "negative_dim": raw.file(tensors=[T("t", (2**63, 0))], data=bytes(32)),
    "offset_past_the_end": raw.file(tensors=[T("t", (8,), offset=2**40)], data=bytes(32)),
    "second_offset_past_the_end": raw.file(tensors=[T("t", (8,)), T("u", (8,), offset=2**40)], data=bytes(32)),
    "overlap": raw.file(tensors=[T("t", (8,)), T("u", (8,))], data=bytes(32)),
    "unaligned": raw.file(tensors=[T("t", (4,)), T("u", (8,), offset=16)], data=bytes(64)),
    "petabytes": raw.file(tensors=[T("t", (2**60,))], data=bytes(32)),
    "alignment_2_30": raw.file([raw.u32_pair("general.alignment", 2**30)]),
    "alignment_0": raw.file([raw.u32_pair("general.alignment", 0)]),
    "alignment_48": raw.file([raw.u32_pair("general.alignment", 48)]),
    "alignment_text": raw.file([raw.text_pair("general.alignment", "32")]),
    "duplicate_keys": raw.file([raw.u32_pair("k", 1), raw.u32_pair("k", 2)]),
    "duplicate_tensors": raw.file(tensors=[T("t", (8,)), T("t", (8,), offset=32)], data=bytes(64)),
    "key_without_name": raw.file([raw.u32_pair("", 1)]),
    "nul_in_key": raw.file([raw.u32_pair("general.alignment\0", 1)]),
    "nul_in_tensor_name": raw.file(tensors=[T("t\0", (8,))], data=bytes(32)),
    "tensor_name_of_64_bytes": raw.file(tensors=[T("t" * 64, (8,))], data=bytes(32)),
    "value_type": raw.file([raw.pair("k", 13, bytes(8))]),
    "array_type": raw.file([raw.pair("k", raw.ARRAY, struct.pack("<IQ", 99, 1) + bytes(8))]),
    "array_of_arrays": raw.file([raw.pair("k", raw.ARRAY, struct.pack("<IQ", raw.ARRAY, 1) + bytes(64))]),
    "tensor_type": raw.file(tensors=[T("t", (8,), type=43)], data=bytes(32)),
    "row_of_no_whole_blocks": raw.file(tensors=[T("t", (8,), type=2)], data=bytes(32)),
}
LIMITED = """
import resource, sys
from pathlib import Path
from llmrun.errors import ModelFileError
from llmrun.gguf.header import open_header
resource.setrlimit(resource.RLIMIT_AS, (500_000_000, 500_000_000))
for name in sys.argv[1:]:
    try:
        open_header(Path(name))
    except ModelFileError as fault:
        print(fault.message)
"""


@pytest.mark.parametrize("case", SEC_02)
def test_sec_02_files_that_lie_are_refused(case: str) -> None:
    assert refusal(SEC_02[case]).message.startswith("corrupt or malicious: x.gguf: ")


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited by setrlimit")
def test_sec_02_within_500_megabytes(tmp_path: Path) -> None:
    paths = [tmp_path / f"{case}.gguf" for case in SEC_02]
    for path in paths:
        path.write_bytes(SEC_02[path.stem])
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *map(str, paths)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["corrupt or malicious"] * len(paths)


def test_messages_hold_no_control_characters_and_stay_short() -> None:
    evil = "\x1b[2J" + "k" * 60000
    message = refusal(raw.file([raw.u32_pair(evil, 1), raw.u32_pair(evil, 2)])).message
    assert "\x1b" not in message
    assert len(message) < 300


def test_removed_tensor_types_are_named() -> None:
    fault = refusal(raw.file(tensors=[T("t", (32,), type=31)], data=bytes(32)))
    assert "holds Q4_0_4_4 (t), a type that llama.cpp no longer reads" in fault.message


def test_gguf_02_truncated_data_is_seen_in_the_header(tmp_path: Path) -> None:
    data = tiny_gguf(tmp_path / "m.gguf").read_bytes()
    for size in (len(data) // 2, len(data) - 16):
        path = tmp_path / f"{size}.gguf"
        path.write_bytes(data[:size])
        header = open_header(path)
        assert not header.complete
        assert (header.expected_size, header.file_size) == (len(data), size)
        assert header.metadata["general.architecture"] == "llama"


def test_gguf_02_every_cut_inside_the_header_is_incomplete(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf")
    data, end = path.read_bytes(), open_header(path).data_offset
    for size in range(4, end - 32, 97):
        fault = refusal(data[:size])
        assert f"x.gguf is incomplete: expected more than {size} bytes by its own header, has {size}" in fault.message


def test_padding_after_the_last_tensor_may_be_missing() -> None:
    data = raw.file(tensors=[T("t", (3,))], data=bytes(12))
    header = read_header(raw.reader(data), len(data), "x.gguf")
    assert header.complete


def test_large_alignment() -> None:
    pairs, tensors = [raw.u32_pair("general.alignment", 4096)], [T("t", (8,)), T("u", (8,), offset=4096)]
    data = raw.file(pairs, tensors, bytes(4096 + 32), alignment=4096)
    header = read_header(raw.reader(data), len(data), "x.gguf")
    assert (header.alignment, header.data_offset, header.complete) == (4096, 4096, True)


def test_weights_are_where_the_table_says(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", seed=5)
    header = open_header(path)
    tensor = next(t for t in header.tensors if t.name == "blk.1.ffn_down.weight")
    start = header.data_offset + tensor.offset
    ours = np.frombuffer(path.read_bytes()[start : start + tensor.n_bytes], np.float32)
    theirs = next(t for t in gguf.GGUFReader(path).tensors if t.name == tensor.name)
    assert np.array_equal(ours, theirs.data.reshape(-1))
