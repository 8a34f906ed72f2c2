"""The flags of `bench` inside one text, as --ab takes them."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from llmrun.bench.grid import (
    Grid,
    parse_cache_types,
    parse_counts,
    parse_flash_attn,
    parse_kv_types,
    parse_layers,
    parse_pairs,
    with_halves,
)
from llmrun.errors import UsageError


def _sets(field: str, parse: Callable[[str], Any]) -> Callable[[Grid, str], Grid]:
    return lambda grid, text: replace(grid, **{field: parse(text)})


def _counts(field: str, flag: str, least: int = 1) -> Callable[[Grid, str], Grid]:
    return _sets(field, lambda text: parse_counts(text, flag, least))


def _k_types(grid: Grid, text: str) -> Grid:
    return replace(grid, kv_type=with_halves(grid.kv_type, parse_cache_types(text, "-ctk"), ()))


def _v_types(grid: Grid, text: str) -> Grid:
    return replace(grid, kv_type=with_halves(grid.kv_type, (), parse_cache_types(text, "-ctv")))


_FLAGS: dict[str, Callable[[Grid, str], Grid]] = {
    "-p --n-prompt": _counts("n_prompt", "-p", 0),
    "-n --n-gen": _counts("n_gen", "-n", 0),
    "-pg --pg": _sets("pairs", lambda text: parse_pairs([text])),
    "-d --depth": _counts("depth", "--depth", 0),
    "-r --repeats": _counts("repeats", "--repeats"),
    "-t --threads": _counts("threads", "--threads"),
    "-b --batch": _counts("batch", "--batch"),
    "-ub --ubatch": _counts("ubatch", "--ubatch"),
    "-g -ngl --gpu-layers": _sets("gpu_layers", parse_layers),
    "--kv-type": _sets("kv_type", parse_kv_types),
    "-ctk --cache-type-k": _k_types,
    "-ctv --cache-type-v": _v_types,
    "-fa --flash-attn": _sets("flash_attn", parse_flash_attn),
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
        grid = found(grid, value[0])
        words = words[2:]
    return grid
