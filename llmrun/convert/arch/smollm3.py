"""SmolLM3: Llama under another name; llama.cpp knows which layers go without rope."""

from typing import Any, ClassVar

import gguf

from llmrun.convert.arch.llama import Llama, with_kv_heads
from llmrun.convert.model import Defaults


class SmolLM3(Llama):
    arch = gguf.MODEL_ARCH.SMOLLM3
    model_types = ("smollm3",)
    defaults: ClassVar[Defaults] = {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
        "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6, "rope_theta": 2000000.0,
    }  # fmt: skip

    def completed(self, values: dict[str, Any]) -> dict[str, Any]:
        return with_kv_heads(values)
