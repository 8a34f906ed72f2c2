"""Special ids, whether to add them, the chat template: gathered from all the files they hide in.

The order of keys and the reading of post-processors are those of llama.cpp's converter (gguf-py, SpecialVocab).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gguf

from llmrun.convert.config import Config
from llmrun.convert.files import optional_object
from llmrun.convert.vocab import template
from llmrun.convert.vocab.post import PostProcessor
from llmrun.convert.vocab.tokenizer import TokenizerFiles, VocabularyWish

KINDS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

# Texts that llama.cpp takes for the end of a turn (and of an answer) whatever the file says: llama-vocab.cpp.
_TURN_ENDS = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>",
    "[EOT]", "<end_of_utterance>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
}  # fmt: skip
_ENDS = {*_TURN_ENDS, "</s>", "<|eom_id|>", "[EOS]", "<eos>"}


def add_special(
    kv: gguf.GGUFWriter,
    files: TokenizerFiles,
    config: Config,
    wish: VocabularyWish,
    merges: Sequence[str] = (),
    kinds: Sequence[str] = KINDS,
) -> None:
    """The special tokens' ids and flags, the chat template and the normalizer's settings."""
    if merges:
        kv.add_token_merges(merges)
    post = PostProcessor(files)
    ids = special_ids(files, config, post, wish, kinds)
    for kind, id in ids.items():
        if (add_id := getattr(kv, f"add_{kind}_token_id", None)) is not None:
            add_id(id)
    for kind, flag in add_flags(files, post, kinds).items():
        if (add_flag := getattr(kv, f"add_add_{kind}_token", None)) is not None:
            add_flag(flag)
    if (text := template.find(files, wish.notes)) is not None:
        kv.add_chat_template(text)
    for name, value in normalizer_settings((files.tokenizer or {}).get("normalizer")).items():
        kv.add_bool(f"tokenizer.ggml.normalizer.{name}", value)


def special_ids(
    files: TokenizerFiles, config: Config, post: PostProcessor, wish: VocabularyWish, kinds: Sequence[str]
) -> dict[str, int]:
    """Ids by kind: the tokens that tokenizer_config.json names, then config.json's ids, then what its lists add."""
    found: dict[str, int] = {}
    by_text = {token.get("content"): token.get("id") for token in reversed(files.added_tokens)}
    if files.has_config:
        for kind in (*kinds, *post.further_kinds):
            _set(found, kind, by_text.get(post.tokens.get(kind)), wish)
    for kind in (*kinds, *post.further_kinds):
        _set(found, kind, config.get(f"{kind}_token_id"), wish)
    _add_listed_ends(found, files, config, wish)
    return found


def _set(found: dict[str, int], kind: str, id: Any, wish: VocabularyWish) -> None:
    if type(id) is not int or kind in found:
        return
    if not 0 <= id < wish.n_tokens:
        wish.notes.append(f"the {kind} id {id} is outside the vocabulary of {wish.n_tokens} tokens and is left out")
        return
    found[kind] = id


def _add_listed_ends(found: dict[str, int], files: TokenizerFiles, config: Config, wish: VocabularyWish) -> None:
    """Lists of end ids, which llama.cpp's converter passes over: a GGUF has keys for two more ends, eot and eom.

    An end that llama.cpp knows by its text needs none, and where it finds its own eot that key is left to it.
    """
    generation = optional_object(files.folder / "generation_config.json") or {}
    listed = [config.get("eos_token_id"), generation.get("eos_token_id")]
    ends = dict.fromkeys(id for ids in listed if isinstance(ids, list) for id in ids if type(id) is int)
    texts = {token["id"]: token["content"] for token in files.added_tokens}
    free = [kind for kind in ("eot", "eom") if kind not in found]
    if _TURN_ENDS & set(texts.values()) and "eot" in free:
        free.remove("eot")
    for id in ends:
        if "eos" not in found:
            _set(found, "eos", id, wish)
        elif id not in (found["eos"], found.get("eot"), found.get("eom")) and texts.get(id) not in _ENDS:
            if not free:
                wish.notes.append(f"token {id} ends an answer too, but a GGUF has no key left for it")
            else:
                _set(found, free.pop(0), id, wish)


def add_flags(files: TokenizerFiles, post: PostProcessor, kinds: Sequence[str]) -> dict[str, bool]:
    """Whether bos, eos and sep are added to a text: what the post-processor does beats tokenizer_config.json."""
    flags = dict(post.flags)
    for kind in (*kinds, *post.further_kinds):
        value = files.config.get(f"add_{kind}_token")
        if isinstance(value, bool):
            flags.setdefault(kind, value)
    return flags


def normalizer_settings(normalizer: Any) -> dict[str, bool]:
    """`lowercase` and `strip_accents`, where tokenizer.json's normalizer states them."""
    if not isinstance(normalizer, Mapping):
        return {}
    kind = normalizer.get("type")
    if kind == "Sequence":
        found: dict[str, bool] = {}
        for part in normalizer.get("normalizers") or []:
            found.update(normalizer_settings(part))
        return {name: found[name] for name in ("lowercase", "strip_accents") if name in found}
    if kind == "Lowercase":
        return {"lowercase": True}
    if kind == "StripAccents":
        return {"strip_accents": True}
    if kind == "BertNormalizer":
        return {n: normalizer[n] for n in ("lowercase", "strip_accents") if isinstance(normalizer.get(n), bool)}
    return {}
