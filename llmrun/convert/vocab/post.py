"""What a tokenizer.json's post-processor says about bos, eos and separators, read as llama.cpp's converter reads it.

Its templates may name other tokens than tokenizer_config.json does; the template's then count.
"""

from collections.abc import Mapping
from typing import Any

from llmrun.convert.vocab.tokenizer import TokenizerFiles


class PostProcessor:
    """`flags`: whether bos, eos, sep are added, in order of discovery. `tokens`: each kind's text.
    `further_kinds`: eot or eom, where the template ends with another token than the declared eos."""

    def __init__(self, files: TokenizerFiles) -> None:
        self.flags: dict[str, bool] = {}
        self.further_kinds: tuple[str, ...] = ()
        self._declared = bool(files.config)
        self._entries: dict[str, Any] = {
            name.removesuffix("_token"): value for name, value in files.config.items() if name.endswith("_token")
        }
        if files.tokenizer is not None:
            self._use("bos", self._entries.get("bos") or self._entries.get("cls"))
            self._use("eos", self._entries.get("eos") or self._entries.get("sep"))
            self._read(files.tokenizer.get("post_processor"))

    @property
    def tokens(self) -> dict[str, str]:
        texts = {kind: entry.get("content") if isinstance(entry, Mapping) else entry
                 for kind, entry in self._entries.items()}  # fmt: skip
        return {kind: text for kind, text in texts.items() if isinstance(text, str)}

    def _use(self, kind: str, entry: Any) -> None:
        if entry:
            self._entries[kind] = entry

    def _read(self, processor: Any) -> None:
        if not isinstance(processor, Mapping):
            return
        for part in processor.get("processors") or [processor]:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind == "ByteLevel":
                self.flags.setdefault("bos", False)
                self.flags.setdefault("eos", False)
            elif kind == "RobertaProcessing":
                self._read_roberta(part)
            elif kind == "TemplateProcessing":
                first, last = self._read_single(part.get("single") or [])
                self._read_pair(part.get("pair") or [], first, last)

    def _read_roberta(self, part: Mapping[str, Any]) -> None:
        self.flags.update(bos=True, eos=True, sep=True)
        for kind in ("cls", "sep"):
            named = part.get(kind)
            if self._declared and not self._entries.get(kind) and isinstance(named, list) and named:
                self._entries[kind] = named[0]

    def _read_single(self, single: list[Any]) -> tuple[str | None, str | None]:
        if len(single) < 2:
            return None, None
        first, last = _special(single[0]), _special(single[-1])
        if first:
            if not self._declared:
                self._entries["bos"] = first
            elif first not in (self._entries.get("bos"), self._entries.get("cls")):
                for kind in ("bos", "cls"):
                    if not self._entries.get(kind):
                        self._entries[kind] = first
            self.flags["bos"] = first in (self._entries.get("bos"), self._entries.get("cls"))
        if last:
            if self._declared and last != self._entries.get("eos"):
                further = next((kind for kind in ("eot", "eom") if kind not in self.further_kinds), None)
                if further:
                    self.further_kinds = (*self.further_kinds, further)
                    self._entries[further] = self._entries.get("eos")
            self._entries["eos"] = last
            self.flags["eos"] = True
        return first, last

    def _read_pair(self, pair: list[Any], first: str | None, last: str | None) -> None:
        """Only the middle of "A [separator] [separator] B" matters."""
        if first and pair and _special(pair[0]) == first:
            pair = pair[1:]
        if last and pair and _special(pair[-1]) == last:
            pair = pair[:-1]
        if len(pair) < 3 or _sequence(pair[0]) != "A" or _sequence(pair[-1]) != "B":
            return
        middle, ends = pair[1:-1], (self._entries.get("sep"), self._entries.get("eos"))
        adds = _special(middle[0]) in ends and _special(middle[0]) is not None and not last
        if len(middle) == 2 and _special(middle[1]) is not None and _special(middle[1]) in ends:
            adds = True
        self.flags["sep"] = adds
        if adds and not self._entries.get("sep") and self._declared:
            self._entries["sep"] = self._entries.get("eos")


def _special(step: Any) -> str | None:
    token = step.get("SpecialToken") if isinstance(step, Mapping) else None
    return token.get("id") if isinstance(token, Mapping) and isinstance(token.get("id"), str) else None


def _sequence(step: Any) -> str | None:
    part = step.get("Sequence") if isinstance(step, Mapping) else None
    return part.get("id") if isinstance(part, Mapping) else None
