"""Sets of characters as sorted, disjoint ranges of code points, without surrogates."""

from collections.abc import Iterable

CharSet = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
EVERY: CharSet = ((0, 0xD7FF), (0xE000, LAST))


def charset(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """The union of the ranges: sorted and merged; reversed ranges hold nothing."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(r for r in ranges if r[0] <= r[1]):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def of(text: str) -> CharSet:
    """The characters of a text."""
    return charset((ord(c), ord(c)) for c in text)


def union(*sets: CharSet) -> CharSet:
    return charset(r for s in sets for r in s)


def intersection(left: CharSet, right: CharSet) -> CharSet:
    found = []
    i = j = 0
    while i < len(left) and j < len(right):
        low, high = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if low <= high:
            found.append((low, high))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def complement(chars: CharSet, within: CharSet = EVERY) -> CharSet:
    gaps = []
    start = 0
    for low, high in chars:
        gaps.append((start, low - 1))
        start = high + 1
    gaps.append((start, LAST))
    return intersection(charset(gaps), within)


def contains(chars: CharSet, point: int) -> bool:
    return any(low <= point <= high for low, high in chars)
