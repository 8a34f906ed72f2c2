"""GGUF files byte by byte, for what no writer would write."""

import struct
from collections.abc import Callable, Sequence

STRING, ARRAY, UINT32 = 8, 9, 4


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, type: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", type) + value


def text_pair(key: str, value: str | bytes) -> bytes:
    return pair(key, STRING, text(value))


def u32_pair(key: str, value: int) -> bytes:
    return pair(key, UINT32, struct.pack("<I", value))


def tensor(name: str, shape: Sequence[int], *, type: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type, offset)


def file(
    pairs: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    n_tensors: int | None = None,
    n_pairs: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file; `n_tensors` and `n_pairs` may lie."""
    counts = (
        len(tensors) if n_tensors is None else n_tensors,
        len(pairs) if n_pairs is None else n_pairs,
    )
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


def reader(data: bytes, calls: list[tuple[int, int]] | None = None) -> Callable[[int, int], bytes]:
    """`read(offset, n)` over bytes, as a remote file would give them; `calls` collects what was asked."""

    def read(offset: int, n: int) -> bytes:
        if calls is not None:
            calls.append((offset, n))
        return data[offset : offset + n]

    return read
