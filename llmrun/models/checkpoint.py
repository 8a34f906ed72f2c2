"""Which files of a folder or repo make up a Hugging Face checkpoint that can be converted. Pure: names only."""

import re
from collections.abc import Sequence

from llmrun.models.quants import NamedFile

_WEIGHTS = re.compile(r"model(?:-(?P<part>\d{5})-of-(?P<count>\d{5}))?\.safetensors")
_BESIDE = re.compile(
    r"[^/]+\.(?:json|model|jinja)|merges\.txt|vocab\.txt|README\.md|LICENSE[^/]*"
    r"|additional_chat_templates/[^/]+\.jinja|[^/]*_Pooling/config\.json"
)
_NOT_NEEDED = {"trainer_state.json", "training_args.json", "all_results.json", "train_results.json"}


def checkpoint_files(files: Sequence[NamedFile]) -> tuple[NamedFile, ...]:
    """Weights, configuration, tokenizer and model card; empty where the repo holds no whole checkpoint."""
    here = {file.name: file for file in files}
    single = "model.safetensors" in here
    parts = {name: match for name in here if (match := _WEIGHTS.fullmatch(name)) and match["count"]}
    whole = parts and len(parts) == int(next(iter(parts.values()))["count"])
    if "config.json" not in here or not (single or whole):
        return ()
    weights = ["model.safetensors"] if single else sorted(parts)
    beside = [name for name in here if is_beside_weights(name)]
    return tuple(here[name] for name in weights + sorted(beside))


def is_beside_weights(name: str) -> bool:
    """Whether conversion reads this file (with its folder, by slashes) beside the weights."""
    return _BESIDE.fullmatch(name) is not None and name not in _NOT_NEEDED
