"""Gemma 1, 2 and 3 (text): norms stored less one, a vocabulary that adds no space before a text."""

from typing import Any, ClassVar

import gguf

from llmrun.convert.config import Config, number
from llmrun.convert.encode import file_type
from llmrun.convert.model import Defaults, Model, Tensors, plus_one
from llmrun.convert.vocab import rank_bpe, sentencepiece
from llmrun.convert.vocab.tokenizer import VocabularyWish
from llmrun.convert.weight import Weight, rows
from llmrun.errors import ConvertError


class Gemma(Model):
    arch = gguf.MODEL_ARCH.GEMMA
    model_types: ClassVar[tuple[str, ...]] = ("gemma",)
    defaults: ClassVar[Defaults] = {
        "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-6,
    }  # fmt: skip

    def source_name(self, name: str) -> str | None:
        return None if name == "lm_head.weight" else name

    def tensors(self, name: str, weight: Weight, layer: int | None) -> Tensors:
        yield name, plus_one(weight) if name.endswith("norm.weight") else weight

    def add_parameters(self, kv: gguf.GGUFWriter, wanted: gguf.GGMLQuantizationType) -> None:
        config = self.config
        kv.add_context_length(config.integer("max_position_embeddings"))
        kv.add_embedding_length(config.integer("hidden_size"))
        kv.add_block_count(self.n_layer)
        kv.add_feed_forward_length(config.integer("intermediate_size"))
        kv.add_head_count(config.n_head)
        kv.add_head_count_kv(config.n_head_kv)
        kv.add_layer_norm_rms_eps(config.real("rms_norm_eps"))
        kv.add_key_length(config.integer("head_dim"))
        kv.add_value_length(config.integer("head_dim"))
        kv.add_file_type(file_type(wanted))

    def add_vocabulary(self, kv: gguf.GGUFWriter, wish: VocabularyWish) -> None:
        self.add_pieces(kv, wish)
        kv.add_eot_token_id(107)  # <end_of_turn>, in every Gemma
        kv.add_add_space_prefix(False)

    def add_pieces(self, kv: gguf.GGUFWriter, wish: VocabularyWish) -> None:
        if self.tokenizer.sentencepiece is not None:
            sentencepiece.add(kv, self.tokenizer, self.config, wish)
        elif rank_bpe.serves(self.tokenizer):
            rank_bpe.add(kv, self.tokenizer, self.config, wish)
        else:
            raise self.tokenizer.missing()


class Gemma2(Gemma):
    arch = gguf.MODEL_ARCH.GEMMA2
    model_types = ("gemma2",)
    defaults: ClassVar[Defaults] = {
        "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "sliding_window": 4096,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    }  # fmt: skip

    def add_parameters(self, kv: gguf.GGUFWriter, wanted: gguf.GGMLQuantizationType) -> None:
        super().add_parameters(kv, wanted)
        kv.add_attn_logit_softcapping(self.config.real("attn_logit_softcapping"))
        kv.add_final_logit_softcapping(self.config.real("final_logit_softcapping"))
        kv.add_sliding_window(self.config.integer("sliding_window"))

    def add_vocabulary(self, kv: gguf.GGUFWriter, wish: VocabularyWish) -> None:
        self.add_pieces(kv, wish)
        kv.add_add_space_prefix(False)


class Gemma3(Gemma):
    arch = gguf.MODEL_ARCH.GEMMA3
    model_types = ("gemma3_text", "gemma3")
    defaults: ClassVar[Defaults] = {
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0, "sliding_window": 4096,
    }  # fmt: skip

    def completed(self, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("use_bidirectional_attention"):
            values["sliding_window"] = Config(values).integer("sliding_window") // 2 + 1
        return values

    def source_name(self, name: str) -> str | None:
        """Leaves out the vision tower of the multimodal checkpoints."""
        if "vision_tower." in name or "multi_modal_projector." in name:
            self.leave_out("the vision tower")
            return None
        return name.replace("language_model.", "")

    def tensors(self, name: str, weight: Weight, layer: int | None) -> Tensors:
        if name.endswith("embed_tokens.weight"):
            weight = rows(weight, 0, self.config.integer("vocab_size"))
        return super().tensors(name, weight, layer)

    def add_parameters(self, kv: gguf.GGUFWriter, wanted: gguf.GGMLQuantizationType) -> None:
        config = self.config
        if config.get("attn_logit_softcapping") is not None:
            raise ConvertError("config.json: attn_logit_softcapping in a Gemma 3", "give --converter PATH")
        self.add_common_parameters(kv, wanted)
        if softcap := config.get("final_logit_softcapping"):
            kv.add_final_logit_softcapping(number("final_logit_softcapping", softcap))
        if config.get("sliding_window_pattern") != 1:
            kv.add_sliding_window(config.integer("sliding_window"))

    def add_vocabulary(self, kv: gguf.GGUFWriter, wish: VocabularyWish) -> None:
        self.add_pieces(kv, wish)
        kv.add_add_space_prefix(False)
