"""Results kept by name as JSON lines in the state directory: the machine first, then a row a line."""

import contextlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from llmrun.bench.environment import BuildFacts, MachineFacts
from llmrun.bench.row import Row
from llmrun.errors import NotFoundError, StoreError, UsageError
from llmrun.paths import state_dir

_NAME = re.compile(r"[\w.+-]{1,100}")


@dataclass(frozen=True)
class Saved:
    machine: MachineFacts
    build: BuildFacts
    rows: tuple[Row, ...]


def path_of(name: str) -> Path:
    """Raises UsageError for what is no plain name."""
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise UsageError(f"{name!r} cannot name results", "letters, digits, dots, dashes and underscores can")
    return state_dir() / "bench" / f"{name}.jsonl"


def check_free(name: str, *, replace: bool) -> None:
    """Raise UsageError where results of that name are there already, unless they may be replaced."""
    if path_of(name).exists() and not replace:
        raise UsageError(f"there are results named {name}", "take another name, or --force to replace them")


def save(name: str, machine: MachineFacts, build: BuildFacts, rows: Sequence[Row]) -> Path:
    """Write all or nothing. Raises StoreError."""
    path = path_of(name)
    lines = [json.dumps({"machine": asdict(machine), "build": asdict(build)})]
    lines += [json.dumps(asdict(row)) for row in rows]
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise StoreError(f"the results cannot be kept: {error}") from error
    return path


def load(name: str) -> Saved:
    """Raises NotFoundError with the names there are, StoreError for a file that is damaged."""
    path = path_of(name)
    try:
        head, *rest = path.read_text(encoding="utf-8").splitlines()
        first = json.loads(head)
        machine, build = _make(MachineFacts, first["machine"]), _make(BuildFacts, first["build"])
        return Saved(machine, build, tuple(_make(Row, json.loads(line)) for line in rest))
    except FileNotFoundError:
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.jsonl")))
        hint = f"there are {known}" if known else "llmrun bench MODEL --save NAME makes some"
        raise NotFoundError(f"there are no results named {name}", hint) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} cannot be read: {error}", "delete it, and measure again") from error


def _make(kind: type[Any], values: dict[str, Any]) -> Any:
    """A dataclass from JSON: lists become tuples again, fields of other releases are left out."""
    known = {field.name for field in fields(kind)}
    kept = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return kind(**{name: value for name, value in kept.items() if name in known})
