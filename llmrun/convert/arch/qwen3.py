"""Qwen3, dense and with experts: Qwen2's with norms on queries and keys, and a head size of its own."""

from typing import ClassVar

import gguf

from llmrun.convert.arch.qwen2 import COMMON, Qwen2, Qwen2Moe
from llmrun.convert.model import Defaults


class Qwen3(Qwen2):
    arch = gguf.MODEL_ARCH.QWEN3
    model_types = ("qwen3",)
    defaults: ClassVar[Defaults] = {**Qwen2.defaults, "head_dim": 128}


class Qwen3Moe(Qwen2Moe):
    arch = gguf.MODEL_ARCH.QWEN3MOE
    model_types = ("qwen3_moe",)
    defaults: ClassVar[Defaults] = {
        **COMMON, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
        "num_attention_heads": 32, "num_key_value_heads": 4, "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8,
    }  # fmt: skip
