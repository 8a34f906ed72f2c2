"""Tokenizers after conversion: llama.cpp must give the ids that Hugging Face's tokenizer gives."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from llmrun.convert.pipeline import convert, preflight
from llmrun.convert.vocab.sentencepiece import read_model
from llmrun.convert.vocab.tokenizer import FastTokenizer, TokenizerFiles
from llmrun.engine.model import Model, ModelSettings
from llmrun.errors import ConvertError, UsageError
from llmrun.report import Quiet
from tests.checkpoints import FIXTURES, checkpoint, copied, edit_json, edit_weights, expected, read_shard
from tests.gguf_digest import GgufFile

SAMPLE = (
    "the quick brown fox, 123 times", "  two spaces\n\n\tand a tab", "Naïve café 你好 🚀 I'll", "Hello", "a ", " a",
    "<s>[INST] <|im_start|>user<think>x</think><start_of_turn>", "\n\n", "don't 1234567 !!", "x  y   z",
    "e.g. U.S.A.\r\nnew", "日本語のテキスト", "\t\ttabs", "ÄÖÜ ß", "<|endoftext|>after", "[CLS] x [SEP]",
    "//comment", '{"a": [1,2]}', "a\u200db", "emoji 👩‍👩‍👧",
)  # fmt: skip
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def converted(folder: Path, out: Path, **more: Any) -> GgufFile:
    convert(folder, out, force=True, report=Quiet(), **more)
    return GgufFile(out)


def llama_ids(path: Path, texts: tuple[str, ...] = SAMPLE) -> list[list[int]]:
    with Model.load(path, ModelSettings(vocab_only=True)) as model:
        return [model.vocab.tokenize(text, add_special=True, parse_special=True) for text in texts]


def hf_ids(folder: Path, texts: tuple[str, ...] = SAMPLE) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in texts]


def keys(file: GgufFile, *names: str) -> list[Any]:
    return [file.keys.get(f"tokenizer.ggml.{name}", ("", None))[1] for name in names]


# Elsewhere the fixture's tokenizer is given a pre-tokenizer that is not its own, so that the reference takes it.
TRUE_TO_TOKENIZER = [name for name in FIXTURES if not expected(name).get("pre")]


@pytest.mark.parametrize("name", TRUE_TO_TOKENIZER)
def test_ids_are_those_of_the_tokenizer(name: str, tmp_path: Path) -> None:
    folder = checkpoint(name)
    converted(folder, tmp_path / "out.gguf")
    tokenizer = FastTokenizer(TokenizerFiles(folder), json.loads((folder / "config.json").read_text())["model_type"])
    # A published XLM-RoBERTa's character map makes line ends and tabs spaces; the fixture's is smaller.
    texts = tuple(text for text in SAMPLE if not (name.startswith("xlm") and set("\n\t") & set(text)))
    wanted = [tokenizer.encode(text) for text in texts]
    assert llama_ids(tmp_path / "out.gguf", texts) == wanted


@pytest.mark.parametrize("name", ["llama_spm", "mistral", "gemma3", "gemma2", "llama_smollm"])
def test_cvt_01_tokenizer_json_serves_without_tokenizer_model(name: str, tmp_path: Path) -> None:
    """CVT-01. llama.cpp's converter gives all scores -1000 here (Llama), or a GPT-2 vocabulary (Gemma 3)."""
    folder = copied(name, tmp_path)
    (folder / "tokenizer.model").unlink(missing_ok=True)
    file = converted(folder, tmp_path / "out.gguf")
    assert llama_ids(tmp_path / "out.gguf") == hf_ids(folder)
    if name != "llama_smollm":
        model, scores = keys(file, "model", "scores")
        assert model == "llama" and len(set(scores)) > 200


def test_cvt_01_merge_order_is_that_of_the_sentencepiece_model(tmp_path: Path) -> None:
    """CVT-01. Texts, types and special ids as with tokenizer.model, and scores that order pieces the same way."""
    folder = copied("llama_spm", tmp_path)
    pieces = read_model(folder / "tokenizer.model").pieces
    (folder / "tokenizer.model").unlink()
    file = converted(folder, tmp_path / "out.gguf")
    tokens, types, scores = keys(file, "tokens", "token_type", "scores")
    assert [token.encode() for token in tokens] == [text for text, _, _ in pieces]
    assert [type for type in types if type == BYTE] == [BYTE] * 256
    merged = [id for id, (text, _, type) in enumerate(pieces) if type == NORMAL and len(text.decode()) > 1]
    assert sorted(merged, key=lambda id: -scores[id]) == sorted(merged, key=lambda id: -pieces[id][1])


def test_cvt_01_without_any_tokenizer_the_message_lists_what_was_looked_for(tmp_path: Path) -> None:
    """CVT-01."""
    for name in ("llama_spm", "qwen2", "gemma3", "bert", "phi3", "xlm_roberta"):
        folder = copied(name, tmp_path / name)
        for path in folder.glob("*token*"):
            path.unlink()
        for path in folder.glob("*.model"):
            path.unlink()
        with pytest.raises(ConvertError, match=r"tokenizer\.json and tokenizer\.model"):
            preflight(folder)


def test_cvt_02_a_larger_embedding_is_filled_with_unused_tokens(tmp_path: Path) -> None:
    """CVT-02. 512 rows, 503 tokens: also where llama.cpp's converter does not pad (Llama without tokenizer.model)."""
    for name, ids in (("llama_spm", range(503, 512)), ("llama_yarn", range(503, 512))):
        folder = copied(name, tmp_path / name)
        (folder / "tokenizer.model").unlink()
        _cut_vocabulary(folder / "tokenizer.json", 500, {"<|user|>": 500, "<tool>": 501, "<x>": 502})
        file = converted(folder, tmp_path / "out.gguf")
        tokens, types = keys(file, "tokens", "token_type")
        assert len(tokens) == 512
        assert [(tokens[id], types[id]) for id in ids] == [(f"[PAD{id}]", UNUSED) for id in ids]
        assert (tokens[500], types[500]) == ("<|user|>", CONTROL)
        assert (tokens[501], types[501], tokens[502], types[502]) == ("<tool>", CONTROL, "<x>", USER_DEFINED)
        with Model.load(tmp_path / "out.gguf", ModelSettings(gpu_layers=0)) as model:
            assert model.vocab.n_tokens == 512


def _cut_vocabulary(path: Path, n: int, added: dict[str, int]) -> None:
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocab = {text: id for text, id in tokenizer["model"]["vocab"].items() if id < n}
    tokenizer["model"]["vocab"] = vocab
    merges = [m.split(" ") if isinstance(m, str) else m for m in tokenizer["model"]["merges"]]
    tokenizer["model"]["merges"] = [m for m in merges if {m[0], m[1], m[0] + m[1]} <= vocab.keys()]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer["added_tokens"] += [
        {"id": id, "content": text, "special": text != "<x>", **flags} for text, id in added.items()
    ]
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def test_cvt_02_fewer_rows_than_tokens_stops_before_anything_is_written(tmp_path: Path) -> None:
    """CVT-02. Both numbers are named."""
    folder = copied("qwen2_moe", tmp_path)
    embedding = read_shard(folder / "model.safetensors")["model.embed_tokens.weight"]
    edit_weights(folder, {"model.embed_tokens.weight": embedding[:400]})
    edit_json(folder / "config.json", vocab_size=400)
    with pytest.raises(ConvertError, match=r"401 tokens.*400 rows"):
        convert(folder, tmp_path / "out.gguf", pre="qwen2", report=Quiet())
    assert list(tmp_path.glob("*.gguf")) == [] and list(tmp_path.glob(".*")) == []


def test_rows_count_where_config_json_says_otherwise(tmp_path: Path) -> None:
    """llama.cpp compares the vocabulary with the embedding's rows; vocab_size in config.json is only a word."""
    folder = copied("llama_spm", tmp_path)
    edit_json(folder / "config.json", vocab_size=640)
    report = Quiet()
    convert(folder, tmp_path / "out.gguf", report=report)
    assert report.notes == ["config.json says 640 tokens, the embedding has 512 rows: 512 are written"]
    file = GgufFile(tmp_path / "out.gguf")
    assert len(keys(file, "tokens")[0]) == 512 and file.keys["llama.vocab_size"] == ("UINT32", 512)


def test_cvt_04_added_tokens_do_not_hide_a_known_family(tmp_path: Path) -> None:
    """CVT-04. Even where they change the ids of the check text."""
    folder = copied("qwen2", tmp_path)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for id, (text, special) in enumerate({"<|extra|>": True, "apple": False, "\n\n": False}.items(), start=151700):
        tokenizer["model"]["vocab"].setdefault(text, id)
        tokenizer["added_tokens"].append({"id": tokenizer["model"]["vocab"][text], "content": text,
                                          "special": special, **flags})  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    file = converted(folder, tmp_path / "out.gguf")
    pre, tokens, types = keys(file, "pre", "tokens", "token_type")
    assert pre == "qwen2"
    kinds = dict(zip(tokens, types, strict=True))
    assert [kinds[text] for text in ("<|extra|>", "apple", "\n\n")] == [CONTROL, USER_DEFINED, USER_DEFINED]
    assert llama_ids(tmp_path / "out.gguf") == hf_ids(folder)


def test_cvt_04_a_changed_post_processor_does_not_hide_one_either(tmp_path: Path) -> None:
    """CVT-04. Llama 3's check-sum counts its bos token, which fine-tunes drop or replace."""
    folder = copied("llama3", tmp_path)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["post_processor"]["single"].append({"SpecialToken": {"id": "<|end_of_text|>", "type_id": 0}})
    tokenizer["post_processor"]["special_tokens"]["<|end_of_text|>"] = {
        "id": "<|end_of_text|>", "ids": [128001], "tokens": ["<|end_of_text|>"],
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    assert preflight(folder).pre in ("llama-bpe", "smaug-bpe")  # the same pattern under two names


def test_cvt_04_an_unknown_pattern_stops_and_names_the_option(tmp_path: Path) -> None:
    """CVT-04. Nothing is written, the tokenizer is described, --pre is the way on."""
    folder = copied("qwen2", tmp_path)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": r"\d|\w+|[^\w\d]+"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    with pytest.raises(ConvertError) as caught:
        convert(folder, tmp_path / "out.gguf", report=Quiet())
    assert "Qwen2Tokenizer" in caught.value.message and r"\d|\w+" in caught.value.message
    assert "--pre" in caught.value.hint
    assert not (tmp_path / "out.gguf").exists()
    assert keys(converted(folder, tmp_path / "out.gguf", pre="qwen2"), "pre") == ["qwen2"]


def test_cvt_04_a_known_pattern_under_unknown_ids_is_named_as_a_hint(tmp_path: Path) -> None:
    """CVT-04. A tokenizer trained anew with a published pattern: no check-sum, but a name to try."""
    with pytest.raises(ConvertError) as caught:
        preflight(checkpoint("qwen3_moe"), tmp_path / "out.gguf")
    assert "gpt-2: give --pre gpt-2" in caught.value.hint


def test_a_pre_that_llama_cpp_does_not_know_is_refused() -> None:
    with pytest.raises(UsageError, match="qwen2"):
        try:
            preflight(checkpoint("qwen2"), Path("out.gguf"), pre="qwn2")
        except UsageError as error:
            raise UsageError(error.message + error.hint) from None


def test_bert_needs_no_known_check_sum(tmp_path: Path) -> None:
    """llama.cpp's WordPiece does not look at the pre-tokenizer; its converter stops all the same."""
    folder = copied("bert", tmp_path)
    edit_json(folder / "tokenizer_config.json", do_lower_case=False)
    assert keys(converted(folder, tmp_path / "out.gguf"), "model", "pre") == ["bert", "default"]


@pytest.mark.parametrize(
    ("listed", "eos", "eot", "eom"),
    [
        # In the fixture 2 is </s>, which llama.cpp knows by its text; the others it cannot know.
        ([2, 7], 2, 7, None),
        ([7, 2], 2, 7, None),
        ([2, 7, 9], 2, 7, 9),
        ([2], 2, None, None),
    ],
)
def test_listed_ends_become_eot_and_eom(
    listed: list[int], eos: int, eot: int | None, eom: int | None, tmp_path: Path
) -> None:
    """The reference passes lists over, so a model would talk on after its second end token."""
    folder = copied("llama_spm", tmp_path)
    edit_json(folder / "config.json", eos_token_id=listed)
    file = converted(folder, tmp_path / "out.gguf")
    assert keys(file, "eos_token_id", "eot_token_id", "eom_token_id") == [eos, eot, eom]
    with Model.load(tmp_path / "out.gguf", ModelSettings(vocab_only=True)) as model:
        assert all(model.vocab.is_eog(id) for id in listed)


def test_ends_may_be_listed_in_generation_config_alone(tmp_path: Path) -> None:
    folder = copied("llama_spm", tmp_path)
    edit_json(folder / "generation_config.json", eos_token_id=[2, 11, 12, 13])
    report = Quiet()
    convert(folder, tmp_path / "out.gguf", report=report)
    assert keys(GgufFile(tmp_path / "out.gguf"), "eos_token_id", "eot_token_id", "eom_token_id") == [2, 11, 12]
    assert report.notes == ["token 13 ends an answer too, but a GGUF has no key left for it"]


def test_ends_that_llama_cpp_knows_by_their_text_need_no_key() -> None:
    """gemma3's config.json lists <end_of_turn>; the reference's file, equal to ours, has no eot."""
    listed = json.loads((checkpoint("gemma3") / "config.json").read_text())["eos_token_id"]
    assert listed == [1, 9]
    assert "tokenizer.ggml.eot_token_id" not in expected("gemma3")["outtypes"]["f16"]["kv"]


def test_special_ids_outside_the_vocabulary_are_left_out(tmp_path: Path) -> None:
    folder = copied("qwen2_moe", tmp_path)
    edit_json(folder / "config.json", bos_token_id=70000)
    report = Quiet()
    convert(folder, tmp_path / "out.gguf", pre="qwen2", report=report)
    assert report.notes == ["the bos id 70000 is outside the vocabulary of 416 tokens and is left out"]
    assert keys(GgufFile(tmp_path / "out.gguf"), "bos_token_id") == [None]


def test_templates_come_from_each_of_their_files(tmp_path: Path) -> None:
    """tokenizer_config.json, then chat_template.jinja, then chat_template.json."""
    folder = copied("llama_spm", tmp_path)
    (folder / "chat_template.json").write_text('{"chat_template": "from json"}', encoding="utf-8")
    out = tmp_path / "out.gguf"
    assert converted(folder, out).keys["tokenizer.chat_template"][1].startswith("{% for message")
    edit_json(folder / "tokenizer_config.json", chat_template=None)
    assert converted(folder, out).keys["tokenizer.chat_template"][1] == "from json"
    (folder / "chat_template.jinja").write_text("from jinja", encoding="utf-8")
    assert converted(folder, out).keys["tokenizer.chat_template"][1] == "from jinja"


def test_a_template_of_the_wrong_kind_is_left_out_with_a_note(tmp_path: Path) -> None:
    folder = copied("llama_spm", tmp_path)
    edit_json(folder / "tokenizer_config.json", chat_template={"default": "x"})
    report = Quiet()
    convert(folder, tmp_path / "out.gguf", report=report)
    assert report.notes == ["the chat template is neither text nor a list of texts and is left out"]


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"version https://git-lfs.github.com/spec/v1\n",
        b"\xff" * 64,
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x0a\x02\x12",
    ],
)
def test_a_damaged_sentencepiece_model_is_named(damage: bytes, tmp_path: Path) -> None:
    folder = copied("llama_spm", tmp_path)
    (folder / "tokenizer.model").write_bytes(damage)
    with pytest.raises(ConvertError, match=r"tokenizer\.model"):
        preflight(folder, tmp_path / "out.gguf")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"model": {"type": "BPE"}}', '{"added_tokens": 3}', "[" * 100_000, "version https://git-lfs"],
)
def test_a_damaged_tokenizer_json_is_named(text: str, tmp_path: Path) -> None:
    folder = copied("qwen2_moe", tmp_path)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConvertError, match=r"tokenizer\.json"):
        preflight(folder, tmp_path / "out.gguf", pre="qwen2")


def test_gemma_3_rows_beyond_the_vocabulary_are_cut_off(tmp_path: Path) -> None:
    """As in the reference: some Gemma 3 embeddings have rows that no token uses."""
    folder = copied("gemma3", tmp_path)
    embedding = read_shard(folder / "model.safetensors")["model.embed_tokens.weight"]
    more = np.concatenate([embedding, np.ones((64, embedding.shape[1]), embedding.dtype)])
    edit_weights(folder, {"model.embed_tokens.weight": more})
    file = converted(folder, tmp_path / "out.gguf", type="f32")
    tensor, data = file.tensor("token_embd.weight")
    assert tensor.shape == [128, 520] and data == embedding.tobytes()


def test_llama_cpp_reads_every_fixture(tmp_path: Path) -> None:
    """Not only the vocabulary: a whole load, as before a run."""
    for name in ("bert_rank", "roberta", "xlm_roberta_json", "stablelm_12b", "mixtral", "gemma3_mm"):
        out = tmp_path / f"{name}.gguf"
        convert(checkpoint(name), out, pre=expected(name).get("pre"), report=Quiet())
        with Model.load(out, ModelSettings(gpu_layers=0)) as model:
            assert model.vocab.n_tokens == len(GgufFile(out).keys["tokenizer.ggml.tokens"][1])
        out.unlink()
