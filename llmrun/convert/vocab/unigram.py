"""Unigram vocabularies (XLM-RoBERTa's kind): from sentencepiece.bpe.model, or from tokenizer.json."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import gguf
from gguf import TokenType

from llmrun.convert.config import Config
from llmrun.convert.vocab.bpe import check_size
from llmrun.convert.vocab.rank_bpe import flat_steps, prepends_space
from llmrun.convert.vocab.sentencepiece import Piece, fillers, read_model
from llmrun.convert.vocab.special import add_special
from llmrun.convert.vocab.tokenizer import FastTokenizer, TokenizerFiles, VocabularyWish
from llmrun.errors import ConvertError


def add(kv: gguf.GGUFWriter, files: TokenizerFiles, config: Config, wish: VocabularyWish) -> None:
    """The vocabulary, under llama.cpp's name t5, with the settings its normalizer needs."""
    path = files.folder / "sentencepiece.bpe.model"
    if path.is_file():
        model = read_model(path)
        if not model.is_unigram:
            raise ConvertError(f"{path.name} is no unigram model", "fetch the tokenizer files again")
        tokens = _fairseq_order(fillers(wish.n_tokens), list(model.pieces))
        charsmap, prefix, trims = model.charsmap, model.adds_dummy_prefix, model.removes_extra_whitespace
    else:
        if files.model_type() != "Unigram":
            raise files.missing() if files.tokenizer is None else _no_unigram()
        tokens = _json_tokens(FastTokenizer(files, config.get("model_type")), wish)
        charsmap = _charsmap((files.tokenizer or {}).get("normalizer"))
        # llama.cpp's converter takes two settings of tokenizer_config.json that say nothing of this tokenizer.
        prefix, trims = prepends_space(files), _joins_spaces(files)
    kv.add_tokenizer_model("t5")
    kv.add_tokenizer_pre("default")
    kv.add_token_list([text for text, _, _ in tokens])
    kv.add_token_scores([score for _, score, _ in tokens])
    kv.add_token_types([type for _, _, type in tokens])
    kv.add_add_space_prefix(prefix)
    kv.add_token_type_count(config.optional_integer("type_vocab_size") or 1)
    kv.add_remove_extra_whitespaces(trims)
    if charsmap:
        kv.add_precompiled_charsmap(charsmap)
    add_special(kv, files, config, wish)


def _fairseq_order(tokens: list[Piece], pieces: list[Piece]) -> list[Piece]:
    """fairseq's ids: four specials of its own, then the model's pieces from the fourth on."""
    check_size(len(pieces) + 1, len(tokens))
    tokens[: len(pieces)] = pieces
    head = [(b"<s>", 0.0, TokenType.CONTROL), (b"<pad>", 0.0, TokenType.CONTROL),
            (b"</s>", 0.0, TokenType.CONTROL), (b"<unk>", 0.0, TokenType.UNKNOWN)]  # fmt: skip
    return head + tokens[3:-1]


def _json_tokens(tokenizer: FastTokenizer, wish: VocabularyWish) -> list[Piece]:
    model = (tokenizer.files.tokenizer or {}).get("model")
    vocab = model.get("vocab") if isinstance(model, Mapping) else None
    if not isinstance(vocab, list):
        raise _no_unigram()
    check_size(max(tokenizer.vocab.values(), default=-1) + 1, wish.n_tokens)
    tokens = fillers(wish.n_tokens)
    special = {tokenizer.vocab.get(str(token)) for token in tokenizer.special.values()}
    unknown = tokenizer.vocab.get(str(tokenizer.special.get("unk_token")), (model or {}).get("unk_id", 3))
    for id, (text, score) in enumerate(vocab):
        type = TokenType.NORMAL
        if id == unknown:
            type = TokenType.UNKNOWN
        elif id in special:
            type = TokenType.CONTROL
        elif id in tokenizer.added:
            type = TokenType.USER_DEFINED
        tokens[id] = (text.encode(), float(score), type)
    for id, token in tokenizer.added.items():
        if id >= len(vocab):
            type = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
            tokens[id] = (token.content.encode(), 0.0, type)
    return tokens


def _joins_spaces(files: TokenizerFiles) -> bool:
    """Whether tokenizer.json treats a run of spaces as one."""
    tokenizer = files.tokenizer or {}
    splits = any(step.get("type") == "WhitespaceSplit" for step in flat_steps(tokenizer.get("pre_tokenizer")))
    return splits or any(
        step.get("type") == "Replace" and step.get("pattern") == {"Regex": " {2,}"}
        for step in flat_steps(tokenizer.get("normalizer"))
    )


def _charsmap(normalizer: Any) -> bytes:
    if not isinstance(normalizer, Mapping):
        return b""
    for part in normalizer.get("normalizers") or [normalizer]:
        text = part.get("precompiled_charsmap") if isinstance(part, Mapping) else None
        if isinstance(text, str):
            try:
                return base64.b64decode(text, validate=True)
            except binascii.Error:
                raise ConvertError("tokenizer.json's character map is damaged", "fetch it again") from None
    return b""


def _no_unigram() -> ConvertError:
    return ConvertError(
        "tokenizer.json holds no unigram vocabulary, which this architecture is converted with",
        "fetch sentencepiece.bpe.model or tokenizer.json of the model",
    )
