"""The small files of a checkpoint folder, read within bounds."""

import json
from pathlib import Path
from typing import Any

from llmrun.errors import ConvertError
from llmrun.models.names import visible

_MAX_JSON = 256 << 20  # the largest known tokenizer.json files are under 40 MB


def read_json(path: Path) -> Any:
    """The value in `path`. Raises ConvertError where it is missing, too large or no JSON."""
    if not path.is_file():
        raise ConvertError(f"{path.name} is missing in {path.parent}", _WHAT_A_FOLDER_HOLDS)
    try:
        size = path.stat().st_size
        if size > _MAX_JSON:
            raise ConvertError(f"{path.name} has {size} bytes, more than any known model's", "fetch it again")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConvertError(f"{path.name} cannot be read: {error}", "fetch the checkpoint again") from None
    if text.startswith("version https://git-lfs"):
        raise ConvertError(f"{path.name} is a Git LFS pointer, not the file", "fetch it with git lfs pull")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"{path.name} is not valid JSON: {error}", "fetch the checkpoint again") from None


def read_object(path: Path) -> dict[str, Any]:
    """`read_json` for a file that must hold one object."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise ConvertError(f"{path.name} holds no JSON object", "fetch the checkpoint again")
    return value


def optional_object(path: Path) -> dict[str, Any] | None:
    """`read_object`, or None where there is no such file."""
    return read_object(path) if path.is_file() else None


def shown(name: str) -> str:
    """A name out of a checkpoint, short and without what a terminal would obey."""
    return visible(name[:120])


_WHAT_A_FOLDER_HOLDS = (
    "a checkpoint folder holds config.json, the weights as *.safetensors, and tokenizer.json or tokenizer.model"
)
