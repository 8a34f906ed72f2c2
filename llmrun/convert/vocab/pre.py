"""Which of llama.cpp's pre-tokenizers splits text as a checkpoint's tokenizer does."""

import difflib
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from llmrun.convert.files import shown
from llmrun.convert.vocab.pre_table import CHECK_TEXT, PRE_TOKENIZERS
from llmrun.convert.vocab.tokenizer import FastTokenizer
from llmrun.errors import ConvertError, UsageError

# Names that llama.cpp reads and no check-sum leads to.
_FURTHER_NAMES = ("default", "llama3", "llama-v3", "mpt", "olmo", "phi-2", "roberta-bpe", "falcon3", "modern-bert")


def find_pre(tokenizer: FastTokenizer, wanted: str | None, needed: bool = True) -> str:
    """The name for `tokenizer.ggml.pre`: `wanted` where given, else by llama.cpp's check-sum.

    Where llama.cpp does not look at the name (`needed` False), an unknown tokenizer is "default".

    Raises ConvertError for a tokenizer whose check-sum is not published: a wrong name splits text wrongly without
    any sign of it. Raises UsageError for a `wanted` that llama.cpp does not know.
    """
    if wanted is not None:
        return _checked(wanted)
    for ids in _encodings(tokenizer):
        if name := PRE_TOKENIZERS.get(_check_sum(ids)):
            return name
    if not needed:
        return "default"
    raise _unknown(tokenizer)


def _checked(wanted: str) -> str:
    names = {*PRE_TOKENIZERS.values(), *_FURTHER_NAMES}
    if wanted not in names:
        near = difflib.get_close_matches(wanted, names, n=4) or sorted(names)[:8]
        raise UsageError(f"--pre {shown(wanted)} names no pre-tokenizer of llama.cpp", f"near: {', '.join(near)}")
    return wanted


def _encodings(tokenizer: FastTokenizer) -> Iterator[list[int]]:
    """CHECK_TEXT as the tokenizer encodes it, then as it would without what fine-tunes add or change."""
    yield tokenizer.encode(CHECK_TEXT)
    special = tokenizer.special
    ends = [
        tokenizer.vocab.get(str(special[name])) for name in ("bos_token", "cls_token", "eos_token") if name in special
    ]
    backends = [tokenizer.backend, tokenizer.without_added(keep_special=True), tokenizer.without_added(False)]
    for backend in backends:
        ids = list(backend.encode(CHECK_TEXT, add_special_tokens=False).ids)
        yield ids
        for end in ends:
            if end is not None:
                yield [end, *ids]
                yield [*ids, end]


def _check_sum(ids: list[int]) -> str:
    return hashlib.sha256(str(ids).encode()).hexdigest()


def _unknown(tokenizer: FastTokenizer) -> ConvertError:
    pre = (tokenizer.files.tokenizer or {}).get("pre_tokenizer")
    steps = tuple(_steps(pre))
    like = _LIKE.get(steps)
    what = f"{tokenizer.class_name}, {len(tokenizer.vocab)} tokens, pre-tokenizer " + (" + ".join(steps) or "none")
    return ConvertError(
        f"the tokenizer's way of splitting text is not known ({shown(what)}, "
        f"check-sum {_check_sum(tokenizer.encode(CHECK_TEXT))[:16]})",
        f"its pattern is that of {like}: give --pre {like}"
        if like
        else "if you know which published tokenizer splits text like this one, name it: --pre NAME (such as qwen2)",
    )


def _steps(pre: Any) -> Iterator[str]:
    """The pre-tokenizer of a tokenizer.json as a list of what it does, for comparison and for people."""
    if not isinstance(pre, Mapping):
        return
    kind = str(pre.get("type"))
    if kind == "Sequence":
        for part in pre.get("pretokenizers") or []:
            yield from _steps(part)
    elif kind == "Split":
        pattern = pre.get("pattern")
        text = next(iter(pattern.values()), "") if isinstance(pattern, Mapping) else ""
        yield f"Split {text}"
    elif kind == "ByteLevel":
        yield "ByteLevel with regex" if pre.get("use_regex", True) else "ByteLevel"
    elif kind == "Digits":
        yield "Digits one by one" if pre.get("individual_digits") else "Digits"
    else:
        yield kind


_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_LIKE = {
    ("ByteLevel with regex",): "gpt-2",
    ("Digits one by one", "ByteLevel with regex"): "smollm",
    (f"Split {_WORD}" + r"\p{N}|" + _REST, "ByteLevel"): "qwen2",
    (f"Split {_WORD}" + r"\p{N}{1,3}|" + _REST, "ByteLevel"): "llama-bpe",
    ("Punctuation", "ByteLevel with regex", "Digits", "Split [0-9][0-9][0-9]"): "falcon",
}
