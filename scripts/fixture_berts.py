"""The fixtures that are converted for embeddings and reranking: BERT and its relatives."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import sentencepiece
import torch
import transformers
from fixture_checkpoints import Fixture
from fixture_tokenizers import SAMPLES, Tokenizers
from tokenizers import processors

from llmrun.convert.vocab.pre_table import CHECK_TEXT


def berts(t: Tokenizers) -> Iterator[Fixture]:
    bert = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "cls_token": "[CLS]", "sep_token": "[SEP]",
            "unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]", "model_max_length": 512}  # fmt: skip
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    pooling = {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": 64, "pooling_mode_cls_token": True,
                                  "pooling_mode_mean_tokens": False},
    }  # fmt: skip
    yield Fixture(
        "bert", "bge-tiny-en-v1.5", "BERT's ids, WordPiece, cls pooling", "BertConfig",
        {**shape, "vocab_size": 30522}, t.wordpiece(bert), dtype="float32", model_class="AutoModel", files=pooling,
    )  # fmt: skip
    yield Fixture(
        "bert_rank", "tiny-reranker", "a classifier over one label", "BertConfig",
        {**shape, "vocab_size": 30522, "id2label": {0: "relevance"}, "label2id": {"relevance": 0}},
        t.wordpiece(bert), model_class="AutoModelForSequenceClassification",
    )  # fmt: skip
    yield Fixture(
        "distilbert", "distilbert-tiny", "DistilBERT, f16", "DistilBertConfig",
        {"dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4, "vocab_size": 30522},
        t.wordpiece({**bert, "tokenizer_class": "DistilBertTokenizer"}), dtype="float16",
        model_class="AutoModelForMaskedLM",
    )  # fmt: skip
    roberta = {"tokenizer_class": "RobertaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>",
               "sep_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>",
               "add_prefix_space": False}  # fmt: skip
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    yield Fixture(
        "roberta", "tiny-roberta", "positions behind the padding id, RobertaProcessing", "RobertaConfig",
        {**shape, "vocab_size": 416, "max_position_embeddings": 130, "type_vocab_size": 1, "pad_token_id": 1},
        t.trained(roberta, special, [], processors.RobertaProcessing(("</s>", 2), ("<s>", 0))),
        model_class="AutoModel", pre="roberta-bpe",
    )  # fmt: skip
    modern = {"tokenizer_class": "PreTrainedTokenizerFast", "cls_token": "[CLS]", "sep_token": "[SEP]",
              "unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}  # fmt: skip
    template = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    yield Fixture(
        "modernbert", "tiny-modernbert-embed", "sliding window, byte-level BPE", "ModernBertConfig",
        {**shape, "vocab_size": 416, "num_hidden_layers": 3, "pad_token_id": 3, "eos_token_id": 1, "bos_token_id": 0,
         "cls_token_id": 0, "sep_token_id": 1},
        t.trained(modern, ["[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]"], ["|||IP|||"], template),
        model_class="AutoModel", pre="modern-bert", files=pooling,
    )  # fmt: skip
    yield Fixture(
        "nomic_bert", "tiny-nomic-embed-text-v1.5", "gated feed-forward, one tensor for q, k and v", "BertConfig",
        {**shape, "vocab_size": 30522}, t.wordpiece(bert), dtype="float32", model_class="AutoModel",
        rename=_as_nomic, set=_NOMIC, drop=("max_position_embeddings", "num_attention_heads", "num_hidden_layers",
                                            "intermediate_size", "hidden_size", "layer_norm_eps"),
        files={**pooling, "1_Pooling/config.json": {"pooling_mode_mean_tokens": True}},
    )  # fmt: skip
    for name, write in (("xlm_roberta", _xlm_pieces), ("xlm_roberta_json", _xlm_json)):
        yield Fixture(
            name, "tiny-multilingual-e5", "unigram, mean pooling", "XLMRobertaConfig",
            {**shape, "vocab_size": 320, "max_position_embeddings": 130, "type_vocab_size": 1, "pad_token_id": 1},
            write, model_class="AutoModel",
            files={**pooling, "1_Pooling/config.json": {"pooling_mode_mean_tokens": True}},
        )  # fmt: skip


_NOMIC = {
    "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "n_embd": 64, "n_head": 4, "n_layer": 2,
    "n_inner": 96, "n_positions": 8192, "rotary_emb_base": 1000, "layer_norm_epsilon": 1e-12,
    "activation_function": "swiglu", "causal": False, "qkv_proj_bias": False, "mlp_fc1_bias": False,
    "mlp_fc2_bias": False, "prenorm": False, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None, "pad_vocab_size_multiple": 64,
}  # fmt: skip


def _as_nomic(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The names of nomic-embed-text, whose class is not among transformers' own."""
    kept = {name: tensor for name, tensor in tensors.items() if "embeddings." in name and "position" not in name}
    found = {name.replace("embeddings.LayerNorm", "emb_ln"): tensor for name, tensor in kept.items()}
    for i in range(2):
        old, new = f"encoder.layer.{i}", f"encoder.layers.{i}"
        qkv = [tensors[f"{old}.attention.self.{what}.weight"] for what in ("query", "key", "value")]
        found[f"{new}.attn.Wqkv.weight"] = torch.cat(qkv)
        found[f"{new}.attn.out_proj.weight"] = tensors[f"{old}.attention.output.dense.weight"]
        found[f"{new}.mlp.fc11.weight"] = tensors[f"{old}.intermediate.dense.weight"]
        found[f"{new}.mlp.fc12.weight"] = tensors[f"{old}.intermediate.dense.weight"] * 2
        found[f"{new}.mlp.fc2.weight"] = tensors[f"{old}.output.dense.weight"]
        for part in ("weight", "bias"):
            found[f"{new}.norm1.{part}"] = tensors[f"{old}.attention.output.LayerNorm.{part}"]
            found[f"{new}.norm2.{part}"] = tensors[f"{old}.output.LayerNorm.{part}"]
    return found


def _xlm_pieces(folder: Path) -> None:
    """A unigram model of 300 pieces with a normalization of its own, small enough to carry."""
    lines = [line for line in [*CHECK_TEXT.split("\n"), *SAMPLES] * 20 if line.strip()]
    # The model keeps the names of its files: relative ones are the same in every run.
    with contextlib.chdir(folder):
        rules = Path("rules.tsv")
        rules.write_text("FF01\t21\nFF1F\t3F\n3000\t20\n", encoding="utf-8")
        with Path("sentencepiece.bpe.model").open("wb") as model:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines), model_writer=model, vocab_size=300, model_type="unigram",
                normalization_rule_tsv=rules.name, hard_vocab_limit=False, num_threads=1, minloglevel=2,
            )  # fmt: skip
        rules.unlink()
    tokenizer = transformers.XLMRobertaTokenizerFast(str(folder / "sentencepiece.bpe.model"))
    tokenizer.save_pretrained(folder)


def _xlm_json(folder: Path) -> None:
    _xlm_pieces(folder)
    (folder / "sentencepiece.bpe.model").unlink()
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    # The published models' form, and the only one the reference reads.
    tokenizer["normalizer"] = tokenizer["normalizer"]["normalizers"][0]
    tokenizer["pre_tokenizer"] = {
        "type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, tokenizer["pre_tokenizer"]],
    }  # fmt: skip
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
