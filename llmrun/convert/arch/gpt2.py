"""GPT-2: matrices stored with rows and columns changed over, attention masks stored among the weights."""

from typing import ClassVar

import gguf

from llmrun.convert.encode import file_type
from llmrun.convert.model import Defaults, Model, Tensors
from llmrun.convert.weight import Weight, transposed


class GPT2(Model):
    arch = gguf.MODEL_ARCH.GPT2
    model_types = ("gpt2",)
    defaults: ClassVar[Defaults] = {
        "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
        "layer_norm_epsilon": 1e-5,
    }  # fmt: skip

    def source_name(self, name: str) -> str | None:
        # The masks of the published GPT-2, on which llama.cpp's converter stops.
        return None if name.endswith((".attn.bias", ".attn.masked_bias")) else name

    def tensors(self, name: str, weight: Weight, layer: int | None) -> Tensors:
        if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            weight = transposed(weight)
        yield name, weight

    def add_parameters(self, kv: gguf.GGUFWriter, wanted: gguf.GGMLQuantizationType) -> None:
        config = self.config
        n_embd = config.integer("n_embd", "hidden_size")
        kv.add_block_count(self.n_layer)
        kv.add_context_length(config.integer("n_ctx", "n_positions"))
        kv.add_embedding_length(n_embd)
        kv.add_feed_forward_length(config.optional_integer("n_inner") or 4 * n_embd)
        kv.add_head_count(config.n_head)
        kv.add_layer_norm_eps(config.real("layer_norm_epsilon"))
        kv.add_file_type(file_type(wanted))
