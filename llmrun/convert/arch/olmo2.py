"""OLMo 2: norms after attention and feed-forward, which llama.cpp knows by the architecture's name."""

from typing import Any, ClassVar

import gguf

from llmrun.convert.arch.llama import with_kv_heads
from llmrun.convert.model import Defaults, Model


class Olmo2(Model):
    arch = gguf.MODEL_ARCH.OLMO2
    model_types = ("olmo2",)
    defaults: ClassVar[Defaults] = {
        "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": None, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    }  # fmt: skip

    def completed(self, values: dict[str, Any]) -> dict[str, Any]:
        return with_kv_heads(values)
