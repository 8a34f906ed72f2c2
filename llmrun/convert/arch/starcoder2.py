"""StarCoder2: nothing beyond its names and defaults."""

from typing import ClassVar

import gguf

from llmrun.convert.model import Defaults, Model


class StarCoder2(Model):
    arch = gguf.MODEL_ARCH.STARCODER2
    model_types = ("starcoder2",)
    defaults: ClassVar[Defaults] = {
        "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30,
        "num_attention_heads": 24, "num_key_value_heads": 2, "max_position_embeddings": 4096,
        "norm_epsilon": 1e-5, "rope_theta": 10000.0,
    }  # fmt: skip
