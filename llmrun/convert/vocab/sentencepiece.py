"""SentencePiece model files: reading their protobuf, and the llama vocabulary made of one.

Only four of its fields matter here, so its wire format is read directly: the sentencepiece package would be a
C++ dependency for sixty lines. https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
from gguf import TokenType

from llmrun.convert.config import Config
from llmrun.convert.files import optional_object
from llmrun.convert.vocab.bpe import WORD_START, looks_special
from llmrun.convert.vocab.special import add_special
from llmrun.convert.vocab.tokenizer import TokenizerFiles, VocabularyWish
from llmrun.errors import ConvertError

_MAX_BYTES = 64 << 20
# The proto's piece types; user-defined pieces count as normal ones in llama.cpp's converter.
_TYPES = {2: TokenType.UNKNOWN, 3: TokenType.CONTROL, 5: TokenType.UNUSED, 6: TokenType.BYTE}


@dataclass(frozen=True)
class SentencePieceModel:
    """`pieces`: text, score, type, in id order."""

    pieces: tuple[tuple[bytes, float, int], ...]
    is_unigram: bool
    charsmap: bytes
    adds_dummy_prefix: bool
    removes_extra_whitespace: bool


def add(kv: gguf.GGUFWriter, files: TokenizerFiles, config: Config, wish: VocabularyWish) -> None:
    """The vocabulary of a checkpoint with tokenizer.model."""
    assert files.sentencepiece is not None
    tokens = piece_list(read_model(files.sentencepiece), wish)
    add_declared(tokens, files, wish)
    add_llama(kv, tokens, files, config, wish)


Piece = tuple[bytes, float, int]


def add_llama(
    kv: gguf.GGUFWriter, tokens: list[Piece], files: TokenizerFiles, config: Config, wish: VocabularyWish
) -> None:
    kv.add_tokenizer_model("llama")
    kv.add_tokenizer_pre("default")
    kv.add_token_list([text for text, _, _ in tokens])
    kv.add_token_scores([score for _, score, _ in tokens])
    kv.add_token_types([type for _, _, type in tokens])
    add_special(kv, files, config, wish)


def fillers(n: int) -> list[Piece]:
    return [(f"[PAD{i}]".encode(), -10000.0, TokenType.UNUSED) for i in range(n)]


def piece_list(model: SentencePieceModel, wish: VocabularyWish) -> list[Piece]:
    tokens = fillers(wish.n_tokens)
    if len(model.pieces) > wish.n_tokens:
        wish.notes.append(f"tokenizer.model has {len(model.pieces)} pieces, the embedding {wish.n_tokens} rows")
    tokens[: len(model.pieces)] = model.pieces[: wish.n_tokens]
    return tokens


def add_declared(tokens: list[Piece], files: TokenizerFiles, wish: VocabularyWish, as_declared: bool = False) -> None:
    """Writes added_tokens.json's and tokenizer_config.json's tokens over the pieces of their ids.

    `as_declared`: texts and flags as they are, where otherwise what looks special is, and word starts are spaces.
    """
    for text, id in (optional_object(files.folder / "added_tokens.json") or {}).items():
        place(tokens, id, text, TokenType.USER_DEFINED, wish)
    decoder = files.config.get("added_tokens_decoder")
    for key, token in (decoder if isinstance(decoder, dict) else {}).items():
        if str(key).isdecimal() and isinstance(token, dict) and isinstance(token.get("content"), str):
            text = token["content"]
            special = bool(token.get("special")) or (looks_special(text) and not as_declared)
            if not special and not as_declared:
                text = text.replace(WORD_START, " ")
            place(tokens, int(key), text, TokenType.CONTROL if special else TokenType.USER_DEFINED, wish)


def place(tokens: list[Piece], id: object, text: str, type: int, wish: VocabularyWish) -> None:
    if not isinstance(id, int) or not 0 <= id < len(tokens):
        wish.notes.append(f"added token {text[:40]!r} has id {id}, outside the {len(tokens)} rows of the embedding")
        return
    tokens[id] = (text.encode(), -1000.0, type)


def read_model(path: Path) -> SentencePieceModel:
    """Reads a SentencePiece model. Raises ConvertError for a file that is none."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError
        return _parse(path.read_bytes())
    except (ValueError, IndexError, struct.error):
        raise ConvertError(
            f"{path.name} is no SentencePiece model (or a Git LFS pointer to one)", "fetch it again"
        ) from None


def _parse(data: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if number == 1:
            pieces.append(_piece(_bytes(value)))
        elif number == 2:
            trainer = dict(_fields(_bytes(value)))
        elif number == 3:
            normalizer = dict(_fields(_bytes(value)))
    if not pieces:
        raise ValueError
    return SentencePieceModel(
        tuple(pieces),
        is_unigram=trainer.get(3, 1) == 1,
        charsmap=_bytes(normalizer.get(2, b"")),
        adds_dummy_prefix=bool(normalizer.get(3, 1)),
        removes_extra_whitespace=bool(normalizer.get(4, 1)),
    )


def _piece(data: bytes) -> Piece:
    fields = dict(_fields(data))
    (score,) = struct.unpack("<f", _bytes(fields.get(2, b"\0\0\0\0")))
    type = fields.get(3, 1)
    return _bytes(fields.get(1, b"")), score, _TYPES.get(int(type), TokenType.NORMAL)


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """A protobuf message's fields: numbers as int, everything else as its bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        n = {1: 8, 5: 4}.get(wire)
        if wire == 2:
            n, at = _varint(data, at)
        if n is None or at + n > len(data):
            raise ValueError
        yield key >> 3, data[at : at + n]
        at += n


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError
