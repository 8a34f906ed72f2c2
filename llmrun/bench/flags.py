"""The flags of `bench` inside one text, as --ab takes them."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from llmrun.bench.grid import Grid, parse_counts, parse_flash_attn, parse_kv_types, parse_layers, parse_pairs
from llmrun.errors import UsageError


def _counts(flag: str, least: int = 1) -> Callable[[str], Any]:
    return lambda text: parse_counts(text, flag, least)


_FLAGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "-p --n-prompt": ("n_prompt", _counts("-p", 0)),
    "-n --n-gen": ("n_gen", _counts("-n", 0)),
    "-pg --pg": ("pairs", lambda text: parse_pairs([text])),
    "-d --depth": ("depth", _counts("--depth", 0)),
    "-r --repeats": ("repeats", _counts("--repeats")),
    "-t --threads": ("threads", _counts("--threads")),
    "-b --batch": ("batch", _counts("--batch")),
    "-ub --ubatch": ("ubatch", _counts("--ubatch")),
    "-g -ngl --gpu-layers": ("gpu_layers", parse_layers),
    "--kv-type": ("kv_type", parse_kv_types),
    "-fa --flash-attn": ("flash_attn", parse_flash_attn),
}


def with_flags(grid: Grid, text: str) -> Grid:
    """The grid with what `text` sets, such as "-t 1 --kv-type q8_0". Raises UsageError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--ab {text!r}: {error}") from None
    while words:
        flag, value = words[0], words[1:2]
        found = next((entry for names, entry in _FLAGS.items() if flag in names.split()), None)
        if found is None or not value:
            what = "has no value" if found else "is no setting of a test"
            raise UsageError(f"--ab {text!r}: {flag} {what}", f"it takes {', '.join(_FLAGS)}")
        name, parse = found
        grid = replace(grid, **{name: parse(value[0])})
        words = words[2:]
    return grid
