"""Values of GGUF metadata: scalars are plain Python, arrays stay bytes until somebody looks into them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from struct import Struct, unpack
from typing import overload

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)

SCALARS = {
    UINT8: Struct("<B"),
    INT8: Struct("<b"),
    UINT16: Struct("<H"),
    INT16: Struct("<h"),
    UINT32: Struct("<I"),
    INT32: Struct("<i"),
    FLOAT32: Struct("<f"),
    BOOL: Struct("<?"),
    UINT64: Struct("<Q"),
    INT64: Struct("<q"),
    FLOAT64: Struct("<d"),
}

VALUE_TYPE_NAMES = (
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64",
)  # fmt: skip


def decode_text(raw: bytes | bytearray) -> str:
    """Bytes that are not UTF-8 become U+FFFD, so that one bad string does not cost the others."""
    return raw.decode("utf-8", "replace")


def shown(value: object) -> str:
    """A value as a message may hold it: short, and with control characters escaped."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


@dataclass(frozen=True, eq=False)
class NumberArray(Sequence[int | float | bool]):
    """An array of numbers or booleans inside a header, decoded when first used."""

    type: int
    raw: bytes

    def __repr__(self) -> str:
        return f"NumberArray({len(self)} {VALUE_TYPE_NAMES[self.type]})"

    @cached_property
    def numbers(self) -> tuple[int | float | bool, ...]:
        code = SCALARS[self.type].format[1:]
        return unpack(f"<{len(self)}{code}", self.raw)

    def __len__(self) -> int:
        return len(self.raw) // SCALARS[self.type].size

    @overload
    def __getitem__(self, index: int) -> int | float | bool: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int | float | bool, ...]: ...
    def __getitem__(self, index: int | slice) -> int | float | bool | tuple[int | float | bool, ...]:
        return self.numbers[index]

    def __iter__(self) -> Iterator[int | float | bool]:
        return iter(self.numbers)


@dataclass(frozen=True, eq=False)
class StringArray(Sequence[str]):
    """An array of strings. `raw` is each length (u64) and its bytes, walked when the header was read."""

    n_strings: int
    raw: bytes

    def __repr__(self) -> str:
        return f"StringArray({len(self)} strings)"

    @cached_property
    def encoded(self) -> tuple[bytes, ...]:
        """The strings as the bytes they are stored in."""
        out: list[bytes] = []
        append, unpack, raw, end = out.append, SCALARS[UINT64].unpack_from, self.raw, 0
        for _ in range(self.n_strings):
            start = end + 8
            end = start + unpack(raw, end)[0]
            append(raw[start:end])
        return tuple(out)

    def pick(self, indices: Sequence[int]) -> list[str]:
        """The strings at these places, in rising order, walking no further than the last of them."""
        if "encoded" in self.__dict__:
            return [decode_text(self.encoded[index]) for index in indices]
        walked = StringArray(indices[-1] + 1 if indices else 0, self.raw).encoded
        return [decode_text(walked[index]) for index in indices]

    @cached_property
    def strings(self) -> tuple[str, ...]:
        return tuple(map(decode_text, self.encoded))

    def __len__(self) -> int:
        return self.n_strings

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        return self.strings[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.strings)


Value = int | float | bool | str | NumberArray | StringArray
