"""Falcon: queries, keys and values stored in one tensor, by groups of heads."""

from typing import ClassVar

import gguf
import numpy as np

from llmrun.convert.encode import file_type
from llmrun.convert.model import Defaults, Model, Tensors
from llmrun.convert.weight import Array, Weight, changed
from llmrun.errors import ConvertError


class Falcon(Model):
    arch = gguf.MODEL_ARCH.FALCON
    model_types = ("falcon",)
    defaults: ClassVar[Defaults] = {
        "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
        "layer_norm_epsilon": 1e-5, "multi_query": True, "new_decoder_architecture": False,
    }  # fmt: skip

    @property
    def n_head_kv(self) -> int:
        """One with multi-query attention, whatever num_kv_heads says (71 in Falcon-7B's class default)."""
        config = self.config
        if config.get("multi_query") and not config.get("new_decoder_architecture"):
            return 1
        return config.optional_integer("num_kv_heads") or config.optional_integer("n_head_kv") or config.n_head

    def add_parameters(self, kv: gguf.GGUFWriter, wanted: gguf.GGMLQuantizationType) -> None:
        config = self.config
        if config.get("alibi"):
            raise ConvertError(
                "this Falcon places tokens by ALiBi, which llama.cpp's Falcon does not", "take another"
            )
        n_embd = config.integer("hidden_size", "n_embed")
        kv.add_context_length(2048)  # not in config.json
        kv.add_tensor_data_layout("jploski")
        kv.add_embedding_length(n_embd)
        kv.add_feed_forward_length(config.optional_integer("ffn_hidden_size") or 4 * n_embd)
        kv.add_block_count(self.n_layer)
        kv.add_head_count(config.n_head)
        kv.add_head_count_kv(self.n_head_kv)
        kv.add_layer_norm_eps(config.real("layer_norm_epsilon"))
        kv.add_file_type(file_type(wanted))

    def tensors(self, name: str, weight: Weight, layer: int | None) -> Tensors:
        if "query_key_value" in name:
            weight = self._regrouped(weight)
        yield name, weight

    def _regrouped(self, weight: Weight) -> Weight:
        """From groups of (queries..., key, value) to all queries, all keys, all values."""
        n_head, n_kv = self.config.n_head, self.n_head_kv
        head_dim = self.config.integer("hidden_size", "n_embed") // n_head
        if n_head % n_kv or weight.shape[0] != (n_head + 2 * n_kv) * head_dim:
            raise ConvertError(
                f"query_key_value has {weight.shape[0]} rows, not those of {n_head} heads and {n_kv} key heads",
                "config.json and the weights do not belong together",
            )

        def regroup(array: Array) -> Array:
            groups = array.reshape(n_kv, n_head // n_kv + 2, head_dim, -1)
            parts = (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])
            return np.concatenate([part.reshape(-1) for part in parts])

        return changed(weight, regroup)
