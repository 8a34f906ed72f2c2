"""The tokenizer of a checkpoint: its files, and the backend that transformers 4.57 would build from them.

Classes there add tokens and replace parts when they load tokenizer.json, and llama.cpp's check-sums and token
types were taken from the result, so the same is done here.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from llmrun.convert.files import optional_object, shown
from llmrun.errors import ConvertError

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass
class VocabularyWish:
    """What the rest of the conversion asks of a vocabulary: `n_tokens` is the rows of the embedding."""

    n_tokens: int
    pre: str | None = None
    notes: list[str] = field(default_factory=list)


class TokenizerFiles:
    """The small files beside the weights that say how text becomes ids; each is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def tokenizer(self) -> dict[str, Any] | None:
        return optional_object(self.folder / "tokenizer.json")

    @cached_property
    def config(self) -> dict[str, Any]:
        return optional_object(self.folder / "tokenizer_config.json") or {}

    @cached_property
    def has_config(self) -> bool:
        return (self.folder / "tokenizer_config.json").is_file()

    @cached_property
    def added_tokens(self) -> list[dict[str, Any]]:
        """tokenizer.json's added tokens."""
        found = (self.tokenizer or {}).get("added_tokens") or []
        return [
            token
            for token in found
            if isinstance(token, dict) and isinstance(token.get("content"), str) and type(token.get("id")) is int
        ]

    @property
    def sentencepiece(self) -> Path | None:
        path = self.folder / "tokenizer.model"
        return path if path.is_file() else None

    def model_type(self) -> str | None:
        """tokenizer.json's kind of vocabulary: BPE, Unigram, WordPiece."""
        model = (self.tokenizer or {}).get("model")
        return model.get("type") if isinstance(model, dict) else None

    def missing(self) -> ConvertError:
        there = sorted(path.name for path in self.folder.iterdir() if "token" in path.name or "vocab" in path.name)
        return ConvertError(
            f"{self.folder} has no tokenizer: looked for tokenizer.json and tokenizer.model"
            + (f", found only {', '.join(map(shown, there))}" if there else ""),
            "fetch the tokenizer files of the model (or of its base model) into the folder",
        )


class FastTokenizer:
    """A tokenizer.json as transformers' fast classes load it."""

    def __init__(self, files: TokenizerFiles, model_type: str | None) -> None:
        if files.tokenizer is None:
            raise files.missing()
        self.files = files
        self.backend = _open_backend(files.folder / "tokenizer.json")
        self.class_name = _class_name(files, model_type)
        known = _CLASSES.get(self.class_name, _Class())
        declared = _declared_tokens(files)
        self.special = _special_tokens(files.config, known, declared)
        self._add_tokens(declared)
        self._set_prefix_space(files.config)
        if known.writes_post_processor:
            self._set_post_processor(known, files.config)
        if known.sets_bert_normalizer:
            self._set_bert_normalizer(files.config)

    @cached_property
    def vocab(self) -> dict[str, int]:
        """Every token's id, added tokens included."""
        return dict(self.backend.get_vocab(with_added_tokens=True))

    @cached_property
    def added(self) -> dict[int, AddedToken]:
        return dict(self.backend.get_added_tokens_decoder())

    def encode(self, text: str, special: bool = True) -> list[int]:
        return list(self.backend.encode(text, add_special_tokens=special).ids)

    def normal_form(self, token: str) -> str:
        """`token` encoded and decoded again: llama.cpp matches added tokens in text as it is."""
        text: str = self.backend.decode(self.encode(token, special=False), skip_special_tokens=False)
        if self.files.config.get("clean_up_tokenization_spaces"):
            for old, new in _CLEANED:
                text = text.replace(old, new)
        return text

    def without_added(self, keep_special: bool) -> tokenizers.Tokenizer:
        """The backend as it would be without the added tokens (or without those that are not special)."""
        tokenizer = self.files.tokenizer or {}
        kept = [token for token in self.files.added_tokens if keep_special and token.get("special")]
        return parse_backend(json.dumps({**tokenizer, "added_tokens": kept}))

    def _add_tokens(self, declared: Mapping[int, AddedToken]) -> None:
        there = {repr(token) for token in self.backend.get_added_tokens_decoder().values()}
        add: list[AddedToken | str] = [token for _, token in sorted(declared.items()) if repr(token) not in there]
        names = {token.content for token in self.backend.get_added_tokens_decoder().values()}
        names |= {str(token) for token in add}
        special_names = {_text(token) for token in self.special.values()}
        # An AddedToken is no str: transformers adds it again, which can only change its flags.
        for token in self.special.values():
            if isinstance(token, AddedToken) or token not in names:
                add.append(token)
        for i, token in enumerate(add):
            is_special = _text(token) in special_names
            if isinstance(token, str):
                add[i] = AddedToken(token, special=is_special)
            else:
                token.special = token.special or is_special
        if add:
            self.backend.add_tokens(add)

    def _set_prefix_space(self, config: Mapping[str, Any]) -> None:
        wanted = config.get("add_prefix_space", False)
        pre = (self.files.tokenizer or {}).get("pre_tokenizer")
        if not isinstance(pre, dict) or not isinstance(wanted, bool):
            return
        if pre.get("add_prefix_space", wanted) != wanted:
            state = {**pre, "add_prefix_space": wanted}
            whole = json.loads(self.backend.to_str())
            self.backend = parse_backend(json.dumps({**whole, "pre_tokenizer": state}))

    def _set_post_processor(self, known: "_Class", config: Mapping[str, Any]) -> None:
        parts, tokens = ["$A:0"], []
        for name, default, at in (("bos", known.adds_bos, 0), ("eos", False, 2)):
            token = self.special.get(f"{name}_token")
            if config.get(f"add_{name}_token", default) and token is not None:
                text = _text(token)
                parts.insert(at, f"{text}:0")
                tokens.append((text, self.backend.token_to_id(text)))
        self.backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=" ".join(parts), pair="$A:0 $B:1", special_tokens=tokens
        )

    def _set_bert_normalizer(self, config: Mapping[str, Any]) -> None:
        state = (self.files.tokenizer or {}).get("normalizer")
        if not isinstance(state, dict) or state.get("type") != "BertNormalizer":
            return
        wanted = {
            "lowercase": config.get("do_lower_case", True),
            "strip_accents": config.get("strip_accents"),
            "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
        }
        clean = state.get("clean_text", True)
        self.backend.normalizer = tokenizers.normalizers.BertNormalizer(clean_text=clean, **wanted)


def parse_backend(text: str) -> tokenizers.Tokenizer:
    """A tokenizer from its JSON, which cuts and pads nothing."""
    return _loaded(tokenizers.Tokenizer.from_str, text)


def _open_backend(path: Path) -> tokenizers.Tokenizer:
    return _loaded(tokenizers.Tokenizer.from_file, str(path))


def _loaded(load: Callable[[str], tokenizers.Tokenizer], what: str) -> tokenizers.Tokenizer:
    try:
        backend = load(what)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exception, and a panic is no Exception at all
        raise ConvertError(
            f"tokenizer.json cannot be loaded: {shown(str(error))}", "fetch tokenizer.json again"
        ) from None
    backend.no_truncation()
    backend.no_padding()
    return backend


@dataclass(frozen=True)
class _Class:
    """What a transformers tokenizer class assumes and does when it loads a tokenizer.json."""

    tokens: Mapping[str, str] = field(default_factory=dict)
    as_special: bool = False
    writes_post_processor: bool = False
    adds_bos: bool = False
    sets_bert_normalizer: bool = False


_ENDOFTEXT = "<|endoftext|>"
_GPT2 = {"unk_token": _ENDOFTEXT, "bos_token": _ENDOFTEXT, "eos_token": _ENDOFTEXT}
_LLAMA = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_BERT = {
    "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]",
}  # fmt: skip
_ROBERTA = {
    "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>",
    "pad_token": "<pad>", "mask_token": "<mask>",
}  # fmt: skip

_CLASSES = {
    "GPT2Tokenizer": _Class(_GPT2),
    "GPTNeoXTokenizer": _Class(_GPT2, writes_post_processor=True),
    "Qwen2Tokenizer": _Class(
        {"unk_token": _ENDOFTEXT, "eos_token": _ENDOFTEXT, "pad_token": _ENDOFTEXT}, as_special=True
    ),
    "LlamaTokenizer": _Class(_LLAMA, writes_post_processor=True, adds_bos=True),
    "GemmaTokenizer": _Class(
        {"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"},
        writes_post_processor=True,
        adds_bos=True,
    ),
    "BertTokenizer": _Class(_BERT, sets_bert_normalizer=True),
    "DistilBertTokenizer": _Class(_BERT, sets_bert_normalizer=True),
    "RobertaTokenizer": _Class(_ROBERTA),
    "XLMRobertaTokenizer": _Class(_ROBERTA),
}
_CLASS_OF_MODEL = {
    "bert": "BertTokenizer", "distilbert": "DistilBertTokenizer", "gemma": "GemmaTokenizer",
    "gemma2": "GemmaTokenizer", "gemma3_text": "GemmaTokenizer", "gpt2": "GPT2Tokenizer",
    "granite": "GPT2Tokenizer", "llama": "LlamaTokenizer", "mistral": "LlamaTokenizer",
    "mixtral": "LlamaTokenizer", "olmo2": "GPTNeoXTokenizer", "phi3": "LlamaTokenizer",
    "qwen2": "Qwen2Tokenizer", "qwen2_moe": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer",
    "qwen3_moe": "Qwen2Tokenizer", "roberta": "RobertaTokenizer", "stablelm": "GPTNeoXTokenizer",
    "starcoder2": "GPT2Tokenizer", "xlm-roberta": "XLMRobertaTokenizer",
}  # fmt: skip
_CLEANED = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"),
    (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


def _class_name(files: TokenizerFiles, model_type: str | None) -> str:
    name = files.config.get("tokenizer_class")
    if not isinstance(name, str):
        name = _CLASS_OF_MODEL.get(model_type or "", "PreTrainedTokenizerFast")
    return name if name == "PreTrainedTokenizerFast" else name.removesuffix("Fast")


def _declared_tokens(files: TokenizerFiles) -> dict[int, AddedToken]:
    """The added tokens that tokenizer_config.json (or, in old checkpoints, tokenizer.json) declares."""
    decoder = files.config.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        pairs = [(key, token) for key, token in decoder.items() if isinstance(token, dict)]
    else:
        pairs = [(token.get("id"), token) for token in files.added_tokens]
    found = {}
    for key, token in pairs:
        if isinstance(token.get("content"), str) and str(key).isdecimal():
            found[int(key)] = _added(token)
    return found


def _special_tokens(
    config: Mapping[str, Any], known: _Class, declared: Mapping[int, AddedToken]
) -> dict[str, AddedToken | str]:
    """The tokenizer's named tokens (bos_token, ...), each as its added token where one is declared."""
    by_text = {token.content: token for token in declared.values()}
    named: dict[str, Any] = {**known.tokens, **{k: v for k, v in config.items() if k in SPECIAL_NAMES}}
    for i, token in enumerate(config.get("additional_special_tokens") or []):
        named[f"additional_{i}"] = token
    found: dict[str, AddedToken | str] = {}
    for name in (*SPECIAL_NAMES, *(name for name in named if name not in SPECIAL_NAMES)):
        value = named.get(name)
        if isinstance(value, dict) and isinstance(value.get("content"), str):
            value = _added(value)
        if not isinstance(value, str | AddedToken):
            continue
        token = by_text.get(_text(value), value) if name in config else value
        if known.as_special and isinstance(token, str):
            token = AddedToken(token, lstrip=False, rstrip=False, special=True, normalized=False)
        found[name] = token
    return found


def _added(token: Mapping[str, Any]) -> AddedToken:
    flags = {
        name: token[name] for name in ("single_word", "lstrip", "rstrip", "normalized", "special") if name in token
    }
    return AddedToken(token["content"], **{name: bool(value) for name, value in flags.items()})


def _text(token: AddedToken | str) -> str:
    return token if isinstance(token, str) else token.content
