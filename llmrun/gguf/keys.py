"""Typed reads of metadata: what a key holds, or an error that names the key."""

from typing import NamedTuple, NoReturn

from llmrun.errors import ModelFileError
from llmrun.gguf.header import Header
from llmrun.gguf.values import NumberArray, StringArray, shown

MAX_LAYERS = 512  # LLAMA_MAX_LAYERS


class Keys(NamedTuple):
    """Reads from one header. A missing key reads as None; one of a wrong type raises ModelFileError."""

    header: Header

    @property
    def arch(self) -> str:
        return self.text("general.architecture") or ""

    def own(self, key: str) -> str:
        """The full name of an architecture's key: `block_count` -> `llama.block_count`."""
        return f"{self.arch}.{key}"

    def refuse(self, key: str, reason: str) -> NoReturn:
        raise ModelFileError(
            f"{self.header.name}: metadata key {shown(key)[1:-1]} {reason}",
            "the file is damaged or was converted wrongly",
        )

    def text(self, key: str) -> str | None:
        value = self.header.metadata.get(key)
        if value is not None and not isinstance(value, str):
            self.refuse(key, f"is {shown(value)}, not a text")
        return value

    def integer(self, key: str) -> int | None:
        """An integer of at least 0."""
        value = self.header.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self.refuse(key, f"is {shown(value)}, not a count")
        return value

    def number(self, key: str) -> float | None:
        value = self.header.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            self.refuse(key, f"is {shown(value)}, not a number")
        return float(value)

    def flag(self, key: str) -> bool | None:
        value = self.header.metadata.get(key)
        if value is not None and not isinstance(value, bool):
            self.refuse(key, f"is {shown(value)}, not true or false")
        return value

    def texts(self, key: str) -> StringArray | None:
        value = self.header.metadata.get(key)
        if value is not None and not isinstance(value, StringArray):
            self.refuse(key, f"is {shown(value)}, not an array of texts")
        return value

    def per_layer(self, key: str, n_layer: int) -> tuple[int, ...] | None:
        """One count for each layer: an array of them, or one count that holds for all."""
        value = self.header.metadata.get(key)
        if not isinstance(value, NumberArray):
            count = self.integer(key)
            return None if count is None else (count,) * n_layer
        counts = tuple(int(number) if number == number else -1 for number in value)
        if len(counts) != n_layer or min(counts, default=0) < 0:
            self.refuse(key, f"is {shown(value)}, not {n_layer} counts (one for each layer)")
        return counts
