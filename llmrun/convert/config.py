"""config.json as an architecture reads it: class defaults filled in, values checked, rope settings in one place."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrun.convert.files import read_object, shown
from llmrun.errors import ConvertError

_MAX_INT = (1 << 31) - 1


class Config:
    """`values` hold what transformers' configuration class would: its defaults, then config.json.

    Reads name alternative spellings, of which the first that is present counts. A value of the wrong kind raises
    ConvertError, as does a missing one where no `default` is given.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)
        self.rope = rope_parameters(self.values)

    def get(self, *names: str) -> Any:
        """The value, or None where it is absent or null."""
        return self.values.get(self._present(names))

    def _present(self, names: Sequence[str]) -> str:
        return next((name for name in names if name in self.values), names[0])

    def integer(self, *names: str) -> int:
        value = self.optional_integer(*names)
        if value is None:
            raise ConvertError(f"config.json has no {names[0]}", "fetch config.json again: it is incomplete")
        return value

    def optional_integer(self, *names: str) -> int | None:
        value = self.get(*names)
        if value is None:
            return None
        if type(value) is not int or not 0 <= value <= _MAX_INT:
            raise ConvertError(f"config.json: {self._present(names)} is {shown(repr(value))}, not a count", _DAMAGED)
        return value

    def real(self, *names: str) -> float:
        value = self.optional_real(*names)
        if value is None:
            raise ConvertError(f"config.json has no {names[0]}", "fetch config.json again: it is incomplete")
        return value

    def optional_real(self, *names: str) -> float | None:
        value = self.get(*names)
        return None if value is None else number(self._present(names), value)

    @property
    def n_head(self) -> int:
        return positive("num_attention_heads", self.integer("num_attention_heads", "n_head", "n_heads"))

    @property
    def n_head_kv(self) -> int:
        return positive(
            "num_key_value_heads", self.optional_integer("num_key_value_heads", "n_kv_heads") or self.n_head
        )

    @property
    def head_dim(self) -> int:
        """Declared, else hidden size by heads."""
        return self.optional_integer("head_dim") or self.integer("hidden_size", "n_embd") // self.n_head


def number(name: str, value: Any) -> float:
    """`value` as a float that fits F32. Raises ConvertError for anything but a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 3.4e38:
        raise ConvertError(f"config.json: {name} is {shown(repr(value))}, not a number", _DAMAGED)
    return float(value)


def positive(name: str, value: int) -> int:
    if value <= 0:
        raise ConvertError(f"config.json: {name} is {value}", _DAMAGED)
    return value


def read_config(folder: Path) -> dict[str, Any]:
    """config.json with a multimodal model's text_config raised to the top."""
    values = read_object(folder / "config.json")
    text = values.get("text_config")
    if isinstance(text, dict):
        outer = values.get("model_type")
        values = {**values, **text, "outer_model_type": outer}
    return values


def architecture_name(values: Mapping[str, Any]) -> str:
    """What config.json calls the architecture. Raises ConvertError where it does not."""
    names = values.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ConvertError(
            "config.json names no architecture",
            'add its "architectures", such as ["LlamaForCausalLM"], or give --converter PATH',
        )
    return names[0]


def rope_parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """rope_parameters or rope_scaling, with the top-level settings that belong to it filled in."""
    found = values.get("rope_parameters", values.get("rope_scaling")) or {}
    if not isinstance(found, dict):
        raise ConvertError("config.json: rope_scaling is no object", _DAMAGED)
    rope = dict(found)
    if "full_attention" in rope or "sliding_attention" in rope:
        return rope

    def first(*names: str) -> Any:
        return next((values[name] for name in names if name in values), None)

    local_theta = first("local_rope_theta", "rope_local_theta", "swa_rope_theta", "rope_local_base_freq")
    if local_theta is not None:
        rope["sliding_attention"] = {"rope_theta": local_theta}
    rope.setdefault("rope_type", rope.get("type"))
    given = {
        "rope_theta": first("global_rope_theta", "rope_global_theta", "rope_theta", "rotary_emb_base"),
        "partial_rotary_factor": first("partial_rotary_factor", "rope_pct", "rope_percent"),
        "original_max_position_embeddings": first("original_max_position_embeddings"),
    }
    for name, value in given.items():
        rope.setdefault(name, value)
    return {name: value for name, value in rope.items() if value is not None}


_DAMAGED = "config.json is damaged or of a kind llmrun does not know; --converter PATH runs llama.cpp's own script"
