"""What a model file on this machine is, from its header, remembered so that a list of many is quick."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from llmrun import paths
from llmrun.errors import LlmrunError
from llmrun.gguf.header import open_header
from llmrun.gguf.info import model_info
from llmrun.gguf.kind import Kind, kind
from llmrun.models.manifest import write_whole


class Facts(NamedTuple):
    """`kind` is a `gguf.kind.Kind`; `fault` is why the file cannot be used, and then the rest is empty."""

    kind: str
    arch: str = ""
    quant: str = ""
    n_params: int = 0
    n_ctx_train: int = 0
    fault: str = ""


class FactsBook:
    """The facts of every file seen, by its path, size and time of change."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or paths.cache_dir() / "facts.json"
        self.known: dict[str, tuple[str, Facts]] = {}
        self.changed = False
        with suppress(OSError, ValueError, TypeError, AttributeError):
            for name, (stamp, facts) in json.loads(self.path.read_bytes()).items():
                self.known[name] = (stamp, Facts(*facts))

    def of(self, files: Sequence[Path]) -> Facts:
        """Of a model in one or several files."""
        try:
            stamp = " ".join(f"{status.st_size} {status.st_mtime_ns}" for status in (path.stat() for path in files))
        except OSError as error:
            return Facts("", fault=error.strerror or str(error))
        key = str(files[0])
        if key not in self.known or self.known[key][0] != stamp:
            self.known[key] = (stamp, read_facts(files))
            self.changed = True
        return self.known[key][1]

    def save(self) -> None:
        """Files that are gone are forgotten."""
        if not self.changed:
            return
        known = {name: entry for name, entry in self.known.items() if Path(name).exists()}
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, json.dumps(known).encode("utf-8"))


@contextmanager
def facts_book() -> Iterator[FactsBook]:
    book = FactsBook()
    yield book
    book.save()


def read_facts(files: Sequence[Path]) -> Facts:
    """Reads the headers. A file that is damaged or no model has its fault as a fact."""
    try:
        headers = [open_header(path) for path in files]
        what = kind(headers[0])
        if what is not Kind.MODEL:
            return Facts(what.value)
        info = model_info(*headers)
        short = [header for header in headers if not header.complete]
        fault = f"incomplete: {short[0].file_size} of {short[0].expected_size} bytes" if short else ""
        return Facts(what.value, info.arch, info.quant, info.n_params, info.n_ctx_train, fault)
    except LlmrunError as error:
        return Facts("", fault=error.message)
