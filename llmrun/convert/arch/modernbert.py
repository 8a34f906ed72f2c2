"""ModernBERT: rotary positions, a sliding window on most layers, a byte-level vocabulary."""

from typing import ClassVar

import gguf

from llmrun.convert.arch.bert import Bert
from llmrun.convert.model import Defaults
from llmrun.convert.vocab import bpe
from llmrun.convert.vocab.tokenizer import VocabularyWish


class ModernBert(Bert):
    arch = gguf.MODEL_ARCH.MODERN_BERT
    model_types = ("modernbert",)
    defaults: ClassVar[Defaults] = {
        "vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22,
        "num_attention_heads": 12, "max_position_embeddings": 8192, "norm_eps": 1e-5,
        "global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "global_attn_every_n_layers": 3,
        "local_attention": 128, "hidden_activation": "gelu", "classifier_pooling": "cls",
    }  # fmt: skip
    prefixes = ("model.", "bert.")

    def source_name(self, name: str) -> str | None:
        # The masked-word head of the published model, on which llama.cpp's converter stops.
        return None if name.startswith("decoder.") else super().source_name(name)

    def add_parameters(self, kv: gguf.GGUFWriter, wanted: gguf.GGMLQuantizationType) -> None:
        config = self.config
        super().add_parameters(kv, wanted)
        kv.add_sliding_window(config.integer("local_attention"))
        if (every := config.optional_integer("global_attn_every_n_layers")) is not None:
            kv.add_sliding_window_pattern(every)
        kv.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        kv.add_vocab_size(config.integer("vocab_size"))
        if activation := config.get("hidden_activation"):
            kv.add_string(f"{kv.arch}.hidden_activation", str(activation))

    def add_vocabulary(self, kv: gguf.GGUFWriter, wish: VocabularyWish) -> None:
        kv.add_add_bos_token(True)
        kv.add_add_eos_token(True)
        kv.add_add_sep_token(True)
        bpe.add(kv, self.tokenizer, self.config, wish)
