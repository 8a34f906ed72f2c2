"""Mistral: Llama's tensors and vocabulary under other defaults."""

from typing import Any, ClassVar

from llmrun.convert.arch.llama import Llama, with_kv_heads
from llmrun.convert.model import Defaults


class Mistral(Llama):
    model_types = ("mistral",)
    defaults: ClassVar[Defaults] = {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    }  # fmt: skip

    def completed(self, values: dict[str, Any]) -> dict[str, Any]:
        return with_kv_heads(values)
