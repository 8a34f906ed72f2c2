"""Reads a GGUF header: metadata and tensor table, not the weights.

Works over `read(offset, n)`, so a file and a remote URL share it. Every count and length is checked against
the file's size, and against a limit, before anything is read or allocated for it. What the values mean is not
known here. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import stat
from collections.abc import Callable, Mapping
from dataclasses import field
from math import prod
from pathlib import Path
from struct import Struct
from typing import NamedTuple, NoReturn

from llmrun.errors import ModelFileError, NotFoundError
from llmrun.gguf.foreign import HEAD_BYTES, refuse_foreign
from llmrun.gguf.types import REMOVED_TENSOR_TYPES, TENSOR_TYPES, TensorType
from llmrun.gguf.values import (
    ARRAY,
    SCALARS,
    STRING,
    UINT32,
    UINT64,
    VALUE_TYPE_NAMES,
    NumberArray,
    StringArray,
    Value,
    decode_text,
    shown,
)

Read = Callable[[int, int], bytes]
"""`read(offset, n)`: up to n bytes from offset, fewer only at the end of the file."""

_FIRST_READ = 1 << 20
_MAX_HEADER = 128 << 20  # the largest known headers (400k tokens and as many merges) are under 30 MB
_MAX_KEYS = 1 << 16
_MAX_KEY_BYTES = (1 << 16) - 1
_MAX_ARRAY = 1 << 24
_MAX_STRINGS = 1 << 22
_MAX_TENSORS = 1 << 17
_MAX_NAME_BYTES = 63  # GGML_MAX_NAME - 1
_MAX_DIMS = 4
_MAX_ALIGNMENT = 1 << 21
_MAX_FILE = 1 << 50
_MIN_KEY_RECORD = 8 + 1 + 4 + 1
_MIN_TENSOR_RECORD = 8 + 4 + 4 + 8
_TENSOR_TAILS = tuple(Struct(f"<{n_dims}QIQ") for n_dims in range(_MAX_DIMS + 1))


class TensorInfo(NamedTuple):
    """One entry of the tensor table. `shape` is in ggml's order (row length first); `offset` counts from the
    header's `data_offset`."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    n_bytes: int

    @property
    def n_elements(self) -> int:
        return prod(self.shape)


class Header(NamedTuple):
    """What a GGUF file says about itself. `value_types`: each key's stored type, an array's element type."""

    name: str
    version: int
    metadata: Mapping[str, Value]
    value_types: Mapping[str, int]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    alignment: int
    file_size: int
    not_utf8: tuple[str, ...] = field(default=())
    """Keys whose text is not UTF-8; the bad bytes read as U+FFFD."""

    @property
    def expected_size(self) -> int:
        """The file size that the tensor table asks for, in bytes."""
        return max((self.data_offset + t.offset + t.n_bytes for t in self.tensors), default=self.data_offset)

    @property
    def complete(self) -> bool:
        return self.file_size >= self.expected_size


def open_header(path: Path, spans: Mapping[str, int] | None = None) -> Header:
    """The header of a local file, which may be incomplete (see `Header.complete`). `spans` as for `read_header`.

    Raises NotFoundError, or ModelFileError for what is no file, no GGUF, or damaged.
    """
    try:
        status = path.stat()
        _refuse_special(path, status.st_mode)
        with path.open("rb", buffering=0) as file:

            def read(offset: int, n: int) -> bytes:
                file.seek(offset)
                return file.read(n)

            return read_header(read, status.st_size, path.name, spans)
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such file") from None
    except OSError as fault:
        raise ModelFileError(f"{path} cannot be read: {fault.strerror or fault}") from None


def _refuse_special(path: Path, mode: int) -> None:
    """Opening a pipe would wait for its writer, for ever."""
    if stat.S_ISDIR(mode):
        raise ModelFileError(f"{path} is a folder, not a GGUF file")
    if not stat.S_ISREG(mode):
        what = "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
        raise ModelFileError(
            f"{path} is {what}, not a regular file", "models are mapped into memory: save it to a file first"
        )


def read_header(read: Read, file_size: int, name: str, spans: Mapping[str, int] | None = None) -> Header:
    """Parse the header that `read` delivers, in doubling steps that stop where the header ends.

    `name` is for messages; `spans` has the bytes of arrays of strings that were walked before, by key. Raises
    ModelFileError: not a GGUF, a version or byte order that is not read,
    `corrupt or malicious: ...`, or incomplete where the file ends inside its own header.
    """
    source = _Source(read, file_size, name, spans or {})
    head = source.peek(HEAD_BYTES)
    if head[:4] != b"GGUF":
        raise refuse_foreign(head, file_size, name)
    source.pos = 4
    version = source.number(UINT32)
    _refuse_version(version, name)
    n_tensors, n_keys = source.number(UINT64), source.number(UINT64)
    source.check_count("tensors", n_tensors, _MAX_TENSORS, _MIN_TENSOR_RECORD)
    source.check_count("metadata keys", n_keys, _MAX_KEYS, _MIN_KEY_RECORD)
    metadata, types, not_utf8 = _read_metadata(source, n_keys)
    alignment = _alignment(source, metadata, types)
    tensors = _read_tensors(source, n_tensors, alignment)
    data_offset = _pad(source.pos, alignment) if tensors else source.pos
    header = Header(name, version, metadata, types, tensors, data_offset, alignment, file_size, tuple(not_utf8))
    _refuse_joined(header, read)
    return header


def _refuse_joined(header: Header, read: Read) -> None:
    """Split parts that were put together with `cat`: after the first one's end another GGUF begins."""
    n_parts = header.metadata.get("split.count", 1)
    if not isinstance(n_parts, int) or n_parts < 2 or header.file_size <= header.expected_size:
        return
    if b"GGUF" in read(header.expected_size, header.alignment + 4):
        raise ModelFileError(
            f"{header.name} is {n_parts} parts of a split model joined byte by byte, which makes no GGUF",
            "keep the parts as separate files and name the first, or join them with llama-gguf-split --merge",
        )


class _Source:
    """The file from its start, buffered in doubling steps, with the position of the next value."""

    def __init__(self, read: Read, file_size: int, name: str, spans: Mapping[str, int]) -> None:
        self.read, self.file_size, self.name, self.spans = read, file_size, name, spans
        self.buffer = b""
        self.pos = 0
        self.n_strings = 0

    def corrupt(self, reason: str) -> NoReturn:
        raise ModelFileError(f"corrupt or malicious: {self.name}: {reason}", "fetch it again")

    def incomplete(self) -> NoReturn:
        raise ModelFileError(
            f"{self.name} is incomplete: expected more than {self.file_size} bytes by its own header, "
            f"has {self.file_size}",
            "the download broke off: fetch it again",
        )

    def peek(self, n: int) -> bytes:
        self._load(min(n, self.file_size))
        return self.buffer[:n]

    def ensure(self, n: int) -> None:
        """Make n bytes from the position available."""
        end = self.pos + n
        if end > len(self.buffer):
            if end > _MAX_HEADER:
                self.corrupt(f"its header runs past {_MAX_HEADER >> 20} MiB")
            if end > self.file_size:
                self.incomplete()
            self._load(end)

    def _load(self, end: int) -> None:
        while len(self.buffer) < end:
            have = len(self.buffer)
            chunk = self.read(have, min(max(_FIRST_READ, have), self.file_size - have))
            if not chunk:
                self.incomplete()
            self.buffer += chunk

    def number(self, type: int) -> int:
        layout = SCALARS[type]
        self.ensure(layout.size)
        (value,) = layout.unpack_from(self.buffer, self.pos)
        self.pos += layout.size
        return int(value)

    def take(self, n: int) -> bytes:
        self.ensure(n)
        start = self.pos
        self.pos = start + n
        return self.buffer[start : self.pos]

    def string(self, what: str, limit: int = _MAX_HEADER) -> bytes:
        n = self.number(UINT64)
        if n > limit:
            self.corrupt(f"{what} claims {n} bytes")
        return self.take(n)

    def check_count(self, what: str, count: int, limit: int, min_bytes: int) -> None:
        if count > limit:
            self.corrupt(f"it claims {count} {what}; no real model has more than {limit}")
        if count * min_bytes > self.file_size - self.pos:
            self.incomplete()

    def strings(self, count: int) -> StringArray:
        """Walk `count` strings without making them: most of the time that reading a header takes."""
        self.n_strings += count
        if self.n_strings > _MAX_STRINGS:
            self.corrupt(f"its arrays claim {self.n_strings} strings")
        first = pos = self.pos
        unpack, last = SCALARS[UINT64].unpack_from, len(self.buffer) - 8
        for _ in range(count):
            if pos > last:
                self.pos = pos
                self.ensure(8)
                last = len(self.buffer) - 8
            pos += 8 + unpack(self.buffer, pos)[0]
        self.pos = first
        return StringArray(count, self.take(pos - first))


def _read_metadata(source: _Source, n_keys: int) -> tuple[dict[str, Value], dict[str, int], list[str]]:
    metadata: dict[str, Value] = {}
    types: dict[str, int] = {}
    not_utf8: list[str] = []
    for index in range(n_keys):
        what = f"metadata key {index}"
        key = _name(source, source.string(f"the name of {what}", _MAX_KEY_BYTES), what)
        if not key or key in metadata:
            source.corrupt(f"duplicate metadata key {shown(key)}" if key else f"{what} has no name")
        type = source.number(UINT32)
        if type == ARRAY:
            type = source.number(UINT32)
            metadata[key] = _read_array(source, key, type)
        elif type == STRING:
            raw = source.string(f"the text of {shown(key)}")
            metadata[key] = text = decode_text(raw)
            if "\ufffd" in text and text.encode() != raw:
                not_utf8.append(key)
        elif type in SCALARS:
            metadata[key] = _read_scalar(source, type)
        else:
            source.corrupt(f"metadata key {shown(key)} has type {type}, which does not exist")
        types[key] = type
    return metadata, types, not_utf8


def _read_scalar(source: _Source, type: int) -> int | float | bool:
    layout = SCALARS[type]
    raw = source.take(layout.size)
    value: int | float | bool = layout.unpack(raw)[0]
    return value


def _read_array(source: _Source, key: str, type: int) -> NumberArray | StringArray:
    count = source.number(UINT64)
    if type == STRING:
        source.check_count(f"strings in {shown(key)}", count, _MAX_ARRAY, 8)
        span = source.spans.get(key)
        return source.strings(count) if span is None else StringArray(count, source.take(span))
    if type not in SCALARS:
        source.corrupt(
            f"metadata key {shown(key)} is an array of arrays"
            if type == ARRAY
            else f"metadata key {shown(key)} is an array of type {type}, which does not exist"
        )
    source.check_count(f"values in {shown(key)}", count, _MAX_ARRAY, SCALARS[type].size)
    return NumberArray(type, source.take(count * SCALARS[type].size))


def _read_tensors(source: _Source, n_tensors: int, alignment: int) -> tuple[TensorInfo, ...]:
    tensors: dict[str, TensorInfo] = {}
    next_offset = 0
    for index in range(n_tensors):
        name = _name(source, source.string(f"the name of tensor {index}", _MAX_NAME_BYTES), f"tensor {index}")
        if name in tensors:
            source.corrupt(f"duplicate tensor name {shown(name)}")
        n_dims = source.number(UINT32)
        if n_dims > _MAX_DIMS:
            source.corrupt(f"tensor {shown(name)} claims {n_dims} dimensions; the most is {_MAX_DIMS}")
        layout = _TENSOR_TAILS[n_dims]
        *shape, type_id, offset = layout.unpack(source.take(layout.size))
        type = _tensor_type(source, name, type_id)
        n_bytes = _tensor_bytes(source, name, shape, type)
        if offset != next_offset:
            source.corrupt(f"tensor {shown(name)} starts at {offset}; after the one before it comes {next_offset}")
        tensors[name] = TensorInfo(name, tuple(shape), type, offset, n_bytes)
        next_offset = offset + _pad(n_bytes, alignment)
        if next_offset > _MAX_FILE:
            source.corrupt(f"tensor {shown(name)} would end at byte {next_offset}")
    return tuple(tensors.values())


def _name(source: _Source, raw: bytes, what: str) -> str:
    """C code reads a name to its first NUL, and would see another name than we do."""
    if b"\0" in raw:
        source.corrupt(f"the name of {what} holds a NUL byte")
    return raw.decode("utf-8", "backslashreplace")


def _tensor_type(source: _Source, name: str, id: int) -> TensorType:
    if id in REMOVED_TENSOR_TYPES:
        raise ModelFileError(
            f"{source.name} holds {REMOVED_TENSOR_TYPES[id]} ({name}), a type that llama.cpp no longer reads",
            "fetch a newer file of the same model: Q4_0 is rearranged for the processor when it is loaded",
        )
    type = TENSOR_TYPES.get(id)
    if type is None:
        source.corrupt(f"tensor {shown(name)} has type {id}, which is not known here")
    return type


def _tensor_bytes(source: _Source, name: str, shape: list[int], type: TensorType) -> int:
    n_elements = prod(shape)
    if n_elements >= 1 << 63 or max(shape, default=0) >= 1 << 63:
        source.corrupt(f"tensor {shown(name)} has shape {shape}: more elements than 64 bits can count")
    row = shape[0] if shape else 1
    if row % type.block_size:
        source.corrupt(f"tensor {shown(name)} has rows of {row}; {type.name} needs multiples of {type.block_size}")
    return n_elements // type.block_size * type.block_bytes


def _alignment(source: _Source, metadata: Mapping[str, Value], types: Mapping[str, int]) -> int:
    value = metadata.get("general.alignment", 32)
    if not isinstance(value, int) or types.get("general.alignment", UINT32) != UINT32:
        source.corrupt(f"general.alignment is {VALUE_TYPE_NAMES[types['general.alignment']]}, not u32")
    if not 8 <= value <= _MAX_ALIGNMENT or value & (value - 1):
        source.corrupt(f"general.alignment is {value}, not a power of two from 8 to {_MAX_ALIGNMENT}")
    return value


def _pad(n: int, alignment: int) -> int:
    return (n + alignment - 1) // alignment * alignment


def _refuse_version(version: int, name: str) -> None:
    if version == 1:
        raise ModelFileError(f"{name} is GGUF version 1; versions 2 and 3 are read", "fetch a newer file")
    if version and version & 0xFFFF == 0:
        raise ModelFileError(f"{name} is a big-endian GGUF", "fetch the little-endian file of the model")
    if version not in (2, 3):
        raise ModelFileError(
            f"{name} says it is GGUF version {version}; versions 2 and 3 are read here",
            "if it comes from a newer tool, update llmrun; else fetch it again",
        )
