"""StableLM: part of each head rotated, and (in the 12B) one norm a head for queries and keys."""

from collections.abc import Sequence
from typing import ClassVar

import gguf

from llmrun.convert.config import number
from llmrun.convert.encode import file_type
from llmrun.convert.model import Defaults, Model, Tensors
from llmrun.convert.weight import Weight, stack


class StableLM(Model):
    arch = gguf.MODEL_ARCH.STABLELM
    model_types = ("stablelm",)
    defaults: ClassVar[Defaults] = {
        "vocab_size": 50304, "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096,
        "layer_norm_eps": 1e-5, "rope_theta": 10000, "partial_rotary_factor": 0.25,
        "use_parallel_residual": False,
    }  # fmt: skip

    def add_parameters(self, kv: gguf.GGUFWriter, wanted: gguf.GGMLQuantizationType) -> None:
        config = self.config
        n_embd = config.integer("hidden_size")
        part = number("partial_rotary_factor", config.rope.get("partial_rotary_factor", 0.25))
        kv.add_context_length(config.integer("max_position_embeddings"))
        kv.add_embedding_length(n_embd)
        kv.add_block_count(self.n_layer)
        kv.add_feed_forward_length(config.integer("intermediate_size"))
        kv.add_rope_dimension_count(int(part * (n_embd // config.n_head)))
        kv.add_head_count(config.n_head)
        kv.add_head_count_kv(config.n_head_kv)
        kv.add_parallel_residual(bool(config.values.get("use_parallel_residual", True)))
        kv.add_layer_norm_eps(config.real("layer_norm_eps", "norm_eps"))
        kv.add_file_type(file_type(wanted))

    _norms: dict[str, dict[int, Weight]] | None = None

    def tensors(self, name: str, weight: Weight, layer: int | None) -> Tensors:
        base, found, rest = name.partition("_layernorm.norms.")
        if not found:
            yield name, weight
            return
        # llama.cpp's converter drops these and then stops; its graph takes them stacked, one row a head.
        if self._norms is None:
            self._norms = {}
        waiting = self._norms.setdefault(base, {})
        waiting[int(rest.partition(".")[0])] = weight
        n = self.config.n_head if base.endswith("q") else self.config.n_head_kv
        if len(waiting) == n and sorted(waiting) == list(range(n)):
            del self._norms[base]
            yield f"{base}_layernorm.weight", stack([waiting[i] for i in range(n)])

    def unfinished(self) -> Sequence[str]:
        return [f"{base}_layernorm.norms.{i}" for base, waiting in (self._norms or {}).items() for i in waiting]
