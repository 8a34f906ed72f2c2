"""What a user may write for a model, parsed. Knows the forms; knows no catalogue, store or network."""

import os
import re
from pathlib import Path
from typing import NamedTuple

from llmrun import paths
from llmrun.errors import UsageError

# NamedTuple, not dataclass, here and in the types `resolve` needs: creating a frozen dataclass costs 1 ms, and
# these are on the way to the first token.


class FileRef(NamedTuple):
    """A file or folder on this machine."""

    path: Path


class AliasRef(NamedTuple):
    """A catalogue name; `quant` where one was asked for (`name:Q8_0`)."""

    name: str
    quant: str | None = None


class HubRef(NamedTuple):
    """A Hugging Face repo; `quant` as typed, `filename` (a path in the repo) where the user named one file."""

    repo: str
    quant: str | None = None
    revision: str | None = None
    filename: str | None = None


class UrlRef(NamedTuple):
    """A direct download."""

    url: str


class OllamaRef(NamedTuple):
    """A model that ollama has here."""

    name: str
    tag: str = "latest"


class WheelPart(NamedTuple):
    """One file inside one wheel."""

    package: str
    version: str
    member: str


class PypiRef(NamedTuple):
    """A file in a wheel, or one cut over several wheels and joined in this order."""

    parts: tuple[WheelPart, ...]


Ref = FileRef | AliasRef | HubRef | UrlRef | OllamaRef | PypiRef


def parse_ref(text: str) -> Ref:
    """Raises UsageError for text that can be no reference."""
    raise NotImplementedError


def ref_text(ref: Ref) -> str:
    """The one canonical spelling of `ref`; `parse_ref(ref_text(ref)) == ref`."""
    raise NotImplementedError
