"""general.* keys: name, size and licence from the model card, the folder's name and generation_config.json.

The guesses from names are those of gguf's Metadata, which llama.cpp's converter uses too.
"""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import gguf
import yaml

from llmrun.convert.encode import Output
from llmrun.convert.files import optional_object

_MAX_CARD = 4 << 20
_SAMPLING: tuple[tuple[str, str, type[Any]], ...] = (
    ("sequence", "sampling_sequence", str), ("top_k", "sampling_top_k", int), ("top_p", "sampling_top_p", float),
    ("min_p", "sampling_min_p", float), ("xtc_probability", "sampling_xtc_probability", float),
    ("xtc_threshold", "sampling_xtc_threshold", float), ("temperature", "sampling_temp", float),
    ("penalty_last_n", "sampling_penalty_last_n", int), ("repetition_penalty", "sampling_penalty_repeat", float),
    ("penalty_repeat", "sampling_penalty_repeat", float), ("mirostat", "sampling_mirostat", int),
    ("mirostat_tau", "sampling_mirostat_tau", float), ("mirostat_eta", "sampling_mirostat_eta", float),
)  # fmt: skip


def find_metadata(
    folder: Path, name: str, name_or_path: Any, outputs: Sequence[Output], notes: list[str]
) -> gguf.Metadata:
    """What general.* is to say. `name` is the folder's, or org/repository for a checkpoint of the hub;
    `name_or_path` is config.json's."""
    total, shared, experts, n_expert = count_parameters(outputs)
    organization, _, own = name.rpartition("/")
    hub = {"_name_or_path": name_or_path} if isinstance(name_or_path, str) else {}
    found = gguf.Metadata.apply_metadata_heuristic(gguf.Metadata(), read_card(folder, notes), hub, Path(own), total)
    if organization and found.organization is None:
        found.organization = gguf.Metadata.id_to_title(organization)
    if found.name is None:
        found.name = own
    if found.size_label is None and total > 0:
        found.size_label = gguf.size_label(total, shared, experts, n_expert)
    _add_sampling(found, folder, notes)
    return found


def count_parameters(outputs: Sequence[Output]) -> tuple[int, int, int, int]:
    """Parameters in all, outside experts, of one expert of each layer, and the number of experts."""
    shared = one_expert = 0
    counts = []
    for output in outputs:
        size = prod(output.weight.shape)
        if "_exps." in output.name and len(output.weight.shape) >= 3:
            counts.append(output.weight.shape[-3])
            one_expert += size // counts[-1]
        else:
            shared += size
    total = sum(prod(output.weight.shape) for output in outputs)
    return total, shared, one_expert, sum(counts) // len(counts) if counts else 0


def read_card(folder: Path, notes: list[str]) -> dict[str, Any]:
    """The YAML head of README.md with every value as text, list or mapping; empty where there is none."""
    path = folder / "README.md"
    if not path.is_file() or path.stat().st_size > _MAX_CARD:
        return {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if not lines or lines[0] != "---":
        return {}
    end = lines.index("---", 1) if "---" in lines[1:] else len(lines)
    # YAML would read the language "no" as false.
    text = ("\n".join(lines[1:end]) + "\n").replace("- no\n", '- "no"\n').replace("\t", "  ")
    try:
        card = yaml.safe_load(text)
        if not isinstance(card, Mapping):
            return {}
        return {str(key): _plain(value) for key, value in card.items() if value is not None}
    except (yaml.YAMLError, ValueError, RecursionError):
        notes.append("the head of README.md is not valid YAML: licence, tags and base model are left out")
        return {}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value if one is not None]
    if isinstance(value, Mapping):
        return {str(key): str(one) for key, one in value.items() if one is not None}
    return str(value)


def _add_sampling(found: gguf.Metadata, folder: Path, notes: list[str]) -> None:
    """The sampling settings that the model's makers recommend."""
    generation = optional_object(folder / "generation_config.json") or {}
    for key, field, kind in _SAMPLING:
        value = generation.get(key)
        if value is None:
            continue
        kinds = (int, float) if kind is float else (kind,)
        if isinstance(value, bool) or not isinstance(value, kinds):
            notes.append(f"generation_config.json: {key} is not of the expected kind and is left out")
        elif isinstance(value, str) or abs(value) < 1e9:
            setattr(found, field, value)
