"""BERT and its relatives, converted for embeddings and reranking: the heads for training are left out."""

from typing import ClassVar

import gguf

from llmrun.convert.model import Defaults, Model, Tensors
from llmrun.convert.pooling import add_pooling
from llmrun.convert.vocab import bpe, unigram, wordpiece
from llmrun.convert.vocab.tokenizer import VocabularyWish
from llmrun.convert.weight import Weight, rows

_UNUSED = ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias")


class Bert(Model):
    arch = gguf.MODEL_ARCH.BERT
    model_types = ("bert",)
    defaults: ClassVar[Defaults] = {
        "vocab_size": 30522, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "max_position_embeddings": 512, "type_vocab_size": 2,
        "layer_norm_eps": 1e-12, "pad_token_id": 0,
    }  # fmt: skip
    prefixes: ClassVar[tuple[str, ...]] = ("bert.",)

    @property
    def labels(self) -> list[str]:
        """A classifier's labels in id order; none for the two dummies that transformers fills in."""
        named = self.config.get("id2label")
        if not isinstance(named, dict) or not all(str(key).isdecimal() for key in named):
            return []
        labels = [str(named[key]) for key in sorted(named, key=int)]
        return [] if len(labels) == 2 and labels[0] == "LABEL_0" else labels

    def source_name(self, name: str) -> str | None:
        for prefix in self.prefixes:
            name = name.removeprefix(prefix)
        if name.endswith(".gamma"):
            name = name.removesuffix(".gamma") + ".weight"
        if name.endswith(".beta"):
            name = name.removesuffix(".beta") + ".bias"
        if name in _UNUSED or name.startswith(("cls.predictions", "cls.seq_relationship")):
            return None
        return name

    def tensors(self, name: str, weight: Weight, layer: int | None) -> Tensors:
        if self.labels and name in ("classifier.weight", "classifier.bias"):
            name = name.replace("classifier.", "classifier.out_proj.")
        yield name, weight

    def add_parameters(self, kv: gguf.GGUFWriter, wanted: gguf.GGMLQuantizationType) -> None:
        self.add_common_parameters(kv, wanted)
        kv.add_causal_attention(False)
        add_pooling(kv, self.folder, self.config)
        if self.labels:
            kv.add_classifier_output_labels(self.labels)

    def add_vocabulary(self, kv: gguf.GGUFWriter, wish: VocabularyWish) -> None:
        wordpiece.add(kv, self.tokenizer, self.config, wish)


class DistilBert(Bert):
    model_types = ("distilbert",)
    defaults: ClassVar[Defaults] = {
        "vocab_size": 30522, "dim": 768, "hidden_dim": 3072, "n_layers": 6, "n_heads": 12,
        "max_position_embeddings": 512, "pad_token_id": 0,
    }  # fmt: skip
    prefixes = ("distilbert.", "bert.")

    def source_name(self, name: str) -> str | None:
        found = super().source_name(name)
        return None if found is None or found.startswith("vocab_") else found

    def add_parameters(self, kv: gguf.GGUFWriter, wanted: gguf.GGMLQuantizationType) -> None:
        kv.add_layer_norm_eps(1e-12)
        super().add_parameters(kv, wanted)


class Roberta(Bert):
    """Positions start behind the padding id, so the first rows of their table are never used."""

    model_types = ("roberta",)
    defaults: ClassVar[Defaults] = {**Bert.defaults, "vocab_size": 50265, "pad_token_id": 1}
    prefixes = ("roberta.", "bert.")

    @property
    def n_skipped(self) -> int:
        pad = self.config.optional_integer("pad_token_id")
        return 0 if pad is None else pad + 1

    def tensors(self, name: str, weight: Weight, layer: int | None) -> Tensors:
        if name == "embeddings.position_embeddings.weight":
            weight = rows(weight, self.n_skipped, weight.shape[0])
        return super().tensors(name, weight, layer)

    def add_parameters(self, kv: gguf.GGUFWriter, wanted: gguf.GGMLQuantizationType) -> None:
        values = self.config.values
        values["max_position_embeddings"] = self.config.integer("max_position_embeddings") - self.n_skipped
        super().add_parameters(kv, wanted)

    def add_vocabulary(self, kv: gguf.GGUFWriter, wish: VocabularyWish) -> None:
        bpe.add(kv, self.tokenizer, self.config, wish)
        kv.add_token_type_count(self.config.optional_integer("type_vocab_size") or 1)


class XLMRoberta(Roberta):
    model_types = ("xlm-roberta",)
    defaults: ClassVar[Defaults] = {**Bert.defaults, "pad_token_id": 1}
    prefixes = ("roberta.", "bert.")

    def add_vocabulary(self, kv: gguf.GGUFWriter, wish: VocabularyWish) -> None:
        unigram.add(kv, self.tokenizer, self.config, wish)
