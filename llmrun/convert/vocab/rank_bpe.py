"""BPE over characters with byte fallback (Llama's and Gemma's tokenizer.json) as a llama vocabulary.

llama.cpp has no merge list for these: it joins the pair whose text has the highest score. A token's score is
therefore minus the rank at which a merge first makes it, which keeps tokenizer.json's order.
"""

import re

import gguf
from gguf import TokenType

from llmrun.convert.config import Config
from llmrun.convert.vocab.bpe import WORD_START, check_size, looks_special, merge_lines
from llmrun.convert.vocab.sentencepiece import add_llama, fillers
from llmrun.convert.vocab.tokenizer import FastTokenizer, TokenizerFiles, VocabularyWish

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def serves(files: TokenizerFiles) -> bool:
    """Whether tokenizer.json is of this kind."""
    model = (files.tokenizer or {}).get("model")
    return isinstance(model, dict) and model.get("type") == "BPE" and model.get("byte_fallback") is True


def add(kv: gguf.GGUFWriter, files: TokenizerFiles, config: Config, wish: VocabularyWish) -> None:
    """The vocabulary of a checkpoint that has such a tokenizer.json and no tokenizer.model."""
    tokenizer = FastTokenizer(files, config.get("model_type"))
    check_size(max(tokenizer.vocab.values(), default=-1) + 1, wish.n_tokens)
    ranks: dict[str, int] = {}
    for line in merge_lines(files):
        left, right = line.split(" ", 1)
        ranks.setdefault(left + right, len(ranks))
    tokens = fillers(wish.n_tokens)
    for text, id in sorted(tokenizer.vocab.items(), key=lambda item: item[1]):
        # What no merge makes ranks after all that one does, in id order.
        rank = ranks.setdefault(text, len(ranks))
        is_byte = _BYTE.fullmatch(text) is not None
        tokens[id] = (
            text.encode(),
            0.0 if is_byte else -float(rank),
            TokenType.BYTE if is_byte else TokenType.NORMAL,
        )
    for id, token in tokenizer.added.items():
        special = token.special or looks_special(token.content)
        text = token.content if special else token.content.replace(WORD_START, " ")
        tokens[id] = (text.encode(), -1000.0, TokenType.CONTROL if special else TokenType.USER_DEFINED)
    add_llama(kv, tokens, files, config, wish)


def prepends_space(files: TokenizerFiles) -> bool:
    """Whether tokenizer.json puts a word start before a text, as llama.cpp does unless told otherwise."""
    tokenizer = files.tokenizer or {}
    for step in [*flat_steps(tokenizer.get("normalizer")), *flat_steps(tokenizer.get("pre_tokenizer"))]:
        if step.get("type") == "Prepend":
            return True
        if step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never":
            return bool(step.get("add_prefix_space", True))
    return False


def flat_steps(step: object) -> list[dict[str, object]]:
    """A normalizer or pre-tokenizer of tokenizer.json as the list of its steps."""
    if not isinstance(step, dict):
        return []
    inner = step.get("normalizers") or step.get("pretokenizers")
    return [part for one in inner for part in flat_steps(one)] if isinstance(inner, list) else [step]
