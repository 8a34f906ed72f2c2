"""Small tokenizers for the converter's fixtures: cut out of llama.cpp's vocabulary files, or trained on a few lines.

A cut-out keeps its tokens' ids (the rest become holes) and every merge that CHECK_TEXT and the sample texts use,
so that the check-sum of its ids is the published one.
"""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from llmrun.convert.vocab.pre_table import CHECK_TEXT

SAMPLES = (
    "the quick brown fox, 123 times",
    "  two spaces\n\n\tand a tab",
    "Naïve café 你好 🚀 I'll",
    "<s>[INST] <|im_start|>user<think>x</think><start_of_turn>",
)
_WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


PRE_TOKENIZERS = {
    "gpt-2": _byte_level(True),
    "starcoder": _sequence({"type": "Digits", "individual_digits": True}, _byte_level(True)),
    "qwen2": _sequence(_split(_WORD + r"\p{N}|" + _REST), _byte_level(False)),
    "llama-bpe": _sequence(_split(_WORD + r"\p{N}{1,3}|" + _REST), _byte_level(False)),
    "falcon": _sequence(
        {"type": "Punctuation", "behavior": "Contiguous"}, _byte_level(True),
        {"type": "Digits", "individual_digits": False}, _split("[0-9][0-9][0-9]"),
    ),
}  # fmt: skip


class VocabFile:
    """Tokens, types and merges of one of llama.cpp's models/ggml-vocab-*.gguf."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.tokens: list[str] = reader.fields["tokenizer.ggml.tokens"].contents()
        self.types: list[int] = reader.fields["tokenizer.ggml.token_type"].contents()
        merges = reader.fields.get("tokenizer.ggml.merges")
        self.merges: list[str] = merges.contents() if merges else []


def cut_bpe(source: VocabFile, name: str, **model: Any) -> dict[str, Any]:
    """A tokenizer.json with the control tokens and what CHECK_TEXT and SAMPLES need of the rest."""
    ids = {token: id for id, token in enumerate(source.tokens)}
    ranks = {merge: rank for rank, merge in enumerate(source.merges)}
    pre = tokenizers.Tokenizer.from_str(json.dumps(_tokenizer_json({}, [], name)))
    used: set[str] = set(pre_tokenizers.ByteLevel.alphabet())
    kept: set[int] = set()
    for text in (CHECK_TEXT, *SAMPLES):
        normal = normalizers.NFC().normalize_str(text) if name == "qwen2" else text
        for piece, _ in pre.pre_tokenizer.pre_tokenize_str(normal):
            _merge(piece, ranks, used, kept)
            if piece in ids:
                used.add(piece)
    control = [id for id, type in enumerate(source.types) if type in (3, 4)][:64]
    used |= {source.tokens[id] for id in control}
    vocab = {token: ids[token] for token in sorted(used, key=lambda token: ids.get(token, -1)) if token in ids}
    found = _tokenizer_json(vocab, [source.merges[rank] for rank in sorted(kept)], name)
    found["model"].update(model)
    found["added_tokens"] = [_added(id, source.tokens[id], source.types[id] == 3) for id in control]
    if name == "qwen2":
        found["normalizer"] = {"type": "NFC"}
    return found


def _merge(piece: str, ranks: dict[str, int], used: set[str], kept: set[int]) -> None:
    parts = list(piece)
    while len(parts) > 1:
        best = min(range(len(parts) - 1), key=lambda i: ranks.get(f"{parts[i]} {parts[i + 1]}", 1 << 40))
        rank = ranks.get(f"{parts[best]} {parts[best + 1]}")
        if rank is None:
            return
        kept.add(rank)
        used |= {parts[best], parts[best + 1], parts[best] + parts[best + 1]}
        parts[best : best + 2] = [parts[best] + parts[best + 1]]


def _tokenizer_json(vocab: dict[str, int], merges: list[str], name: str) -> dict[str, Any]:
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[name], "post_processor": None, "decoder": _byte_level(True),
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocab, "merges": merges,
        },
    }  # fmt: skip


def _added(id: int, text: str, special: bool) -> dict[str, Any]:
    return {
        "id": id, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
        "special": special,
    }  # fmt: skip


def cut_wordpiece(source: VocabFile) -> dict[str, Any]:
    """BERT's, with the pieces that CHECK_TEXT and SAMPLES need."""
    whole = {}
    for id, token in enumerate(source.tokens):
        text = token if source.types[id] == 3 else token[1:] if token.startswith("\u2581") else f"##{token}"
        whole[text] = id
    special = {text: id for text, id in whole.items() if text in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")}
    found = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [_added(id, text, True) for text, id in special.items()],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                       "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _bert_template(special),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": whole},
    }  # fmt: skip
    backend = tokenizers.Tokenizer.from_str(json.dumps(found))
    kept = set(special.values())
    for text in (CHECK_TEXT, *SAMPLES):
        kept |= set(backend.encode(text).ids)
    found["model"]["vocab"] = {text: id for text, id in whole.items() if id in kept}
    return found


def _bert_template(special: dict[str, int]) -> dict[str, Any]:
    template = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", special["[CLS]"]), ("[SEP]", special["[SEP]"])],
    )  # fmt: skip
    return json.loads(template.__getstate__())


def trained_bpe(special: list[str], plain: list[str], post: Any = None) -> tokenizers.Tokenizer:
    """A byte-level BPE of 400 tokens whose check-sum nobody has published."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )  # fmt: skip
    backend.train_from_iterator([CHECK_TEXT, *SAMPLES] * 3, trainer)
    backend.add_tokens([AddedToken(token, normalized=False) for token in plain])
    if post is not None:
        backend.post_processor = post
    return backend


def from_archive(archive: Path, folder: Path, files: tuple[str, ...]) -> None:
    """Copies tokenizer files out of another fixture."""
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            name = member.name.rpartition("/")[2]
            if name in files and (data := tar.extractfile(member)) is not None:
                (folder / name).write_bytes(data.read())


_SPM_FILES = ("tokenizer.model", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


class Tokenizers:
    """Ways to write a tokenizer's files into a checkpoint folder."""

    def __init__(self, models: Path, archives: Path) -> None:
        self.models = models
        self.archives = archives

    def spm(self, **changes: Any) -> Callable[[Path], None]:
        return self._copied("llama_spm", _SPM_FILES, changes)

    def gemma(self, without: str = "", **changes: Any) -> Callable[[Path], None]:
        return self._copied("gemma3", tuple(name for name in _SPM_FILES if name != without), changes)

    def _copied(self, archive: str, files: tuple[str, ...], changes: dict[str, Any]) -> Callable[[Path], None]:
        def write(folder: Path) -> None:
            from_archive(self.archives / f"{archive}.tar.xz", folder, files)
            path = folder / "tokenizer_config.json"
            config = json.loads(path.read_text(encoding="utf-8"))
            path.write_text(json.dumps({**config, **changes}, indent=2), encoding="utf-8")

        return write

    def cut(self, name: str, config: dict[str, Any], post: Any = None, **model: Any) -> Callable[[Path], None]:
        def write(folder: Path) -> None:
            found = cut_bpe(VocabFile(self.models / f"ggml-vocab-{name}.gguf"), name, **model)
            if post is not None:
                found["post_processor"] = json.loads(post.__getstate__())
            _dump(folder, found, config)

        return write

    def wordpiece(self, config: dict[str, Any]) -> Callable[[Path], None]:
        def write(folder: Path) -> None:
            _dump(folder, cut_wordpiece(VocabFile(self.models / "ggml-vocab-bert-bge.gguf")), config)

        return write

    def trained(self, config: dict[str, Any], special: list[str], plain: list[str] = [], post: Any = None) -> Any:  # noqa: B006
        def write(folder: Path) -> None:
            trained_bpe(special, plain, post).save(str(folder / "tokenizer.json"))
            (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")

        return write


def _dump(folder: Path, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
