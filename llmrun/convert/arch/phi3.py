"""Phi-3 and Phi-4: rope factors for long contexts, and added tokens taken from tokenizer.json too."""

import math
from typing import Any, ClassVar, TypeGuard

import gguf
from gguf import TokenType

from llmrun.convert.arch.llama import with_kv_heads
from llmrun.convert.config import number, positive
from llmrun.convert.encode import file_type
from llmrun.convert.model import Defaults, Model, Tensors
from llmrun.convert.vocab import bpe, rank_bpe, sentencepiece
from llmrun.convert.vocab.tokenizer import VocabularyWish
from llmrun.convert.weight import values
from llmrun.errors import ConvertError


class Phi3(Model):
    arch = gguf.MODEL_ARCH.PHI3
    model_types = ("phi3",)
    defaults: ClassVar[Defaults] = {
        "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": None, "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "partial_rotary_factor": 1.0,
    }  # fmt: skip

    def completed(self, values: dict[str, Any]) -> dict[str, Any]:
        scaling = values.get("rope_scaling")
        if isinstance(scaling, dict) and scaling.get("type") in ("su", "yarn"):
            values["rope_scaling"] = {**scaling, "type": "longrope"}  # what Phi-3's first checkpoints mean
        return with_kv_heads(values)

    @property
    def trained_context(self) -> int:
        rope = self.config.rope
        trained = rope.get("original_max_position_embeddings", self.config.get("max_position_embeddings"))
        if type(trained) is not int:
            raise ConvertError("config.json has no original_max_position_embeddings", "fetch config.json again")
        return positive("original_max_position_embeddings", trained)

    @property
    def rope_dims(self) -> int:
        part = number("partial_rotary_factor", self.config.rope.get("partial_rotary_factor", 1.0))
        return int(part * self.config.integer("hidden_size", "n_embd")) // self.config.n_head

    def add_parameters(self, kv: gguf.GGUFWriter, wanted: gguf.GGMLQuantizationType) -> None:
        config = self.config
        kv.add_context_length(config.integer("n_positions", "max_position_embeddings"))
        kv.add_rope_scaling_orig_ctx_len(self.trained_context)
        kv.add_embedding_length(config.integer("hidden_size", "n_embd"))
        kv.add_feed_forward_length(config.integer("intermediate_size"))
        kv.add_block_count(self.n_layer)
        kv.add_head_count(config.n_head)
        kv.add_head_count_kv(config.n_head_kv)
        kv.add_layer_norm_rms_eps(config.real("rms_norm_eps"))
        kv.add_rope_dimension_count(self.rope_dims)
        rope = config.rope.get("full_attention", config.rope)
        kv.add_rope_freq_base(number("rope_theta", rope.get("rope_theta")))
        kv.add_file_type(file_type(wanted))
        # Zero tells llama.cpp a Phi-4 from a Phi-3.
        kv.add_sliding_window(config.optional_integer("sliding_window") or 0)

    def extra_tensors(self, kv: gguf.GGUFWriter) -> Tensors:
        rope = self.config.rope
        long, short = rope.get("long_factor"), rope.get("short_factor")
        if not long:
            return
        if not (_are_factors(long, self.rope_dims) and _are_factors(short, self.rope_dims)):
            raise ConvertError(
                f"config.json: rope_scaling's factors are not {self.rope_dims // 2} numbers each",
                "fetch config.json again",
            )
        kv.add_rope_scaling_attn_factors(self._attention_factor())
        for name, factors in (("rope_factors_long", long), ("rope_factors_short", short)):
            yield f"{name}.weight", values(factors)

    def _attention_factor(self) -> float:
        trained = self.trained_context
        scale = self.config.integer("n_positions", "max_position_embeddings") / trained
        kind = self.config.rope.get("rope_type")
        if kind not in ("su", "longrope", "yarn"):
            raise ConvertError(f"config.json: rope_scaling of type {kind!r} in a Phi-3", "fetch config.json again")
        if scale <= 1.0:
            return 1.0
        if kind == "yarn":
            return 0.1 * math.log(scale) + 1.0
        return math.sqrt(1 + math.log(scale) / math.log(trained))

    def add_vocabulary(self, kv: gguf.GGUFWriter, wish: VocabularyWish) -> None:
        files = self.tokenizer
        if files.config.get("tokenizer_class") == "GPT2Tokenizer" or files.sentencepiece is None:
            if rank_bpe.serves(files):
                rank_bpe.add(kv, files, self.config, wish)
            else:
                bpe.add(kv, files, self.config, wish)
            return
        tokens = sentencepiece.piece_list(sentencepiece.read_model(files.sentencepiece), wish)
        sentencepiece.add_declared(tokens, files, wish, as_declared=True)
        for token in files.added_tokens:
            type = TokenType.CONTROL if token.get("special") else TokenType.USER_DEFINED
            sentencepiece.place(tokens, token["id"], token["content"], type, wish)
        sentencepiece.add_llama(kv, tokens, files, self.config, wish)


def _are_factors(factors: Any, rope_dims: int) -> TypeGuard[list[float]]:
    return (
        isinstance(factors, list)
        and len(factors) == rope_dims / 2
        and all(isinstance(one, int | float) and not isinstance(one, bool) for one in factors)
    )
