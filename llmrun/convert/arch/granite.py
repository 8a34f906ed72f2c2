"""Granite: Llama with four multipliers."""

from typing import ClassVar

import gguf

from llmrun.convert.arch.llama import Llama, with_kv_heads
from llmrun.convert.model import Defaults


class Granite(Llama):
    arch = gguf.MODEL_ARCH.GRANITE
    model_types = ("granite",)
    defaults: ClassVar[Defaults] = {
        **{name: value for name, value in Llama.defaults.items() if name != "head_dim"},
        "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0,
        "attention_multiplier": 1.0,
    }  # fmt: skip

    def completed(self, values: dict[str, object]) -> dict[str, object]:
        return with_kv_heads(values)

    def add_parameters(self, kv: gguf.GGUFWriter, wanted: gguf.GGMLQuantizationType) -> None:
        self.config.values.pop("head_dim", None)  # llama.cpp's Granite graph has none
        super().add_parameters(kv, wanted)
        multipliers = (
            ("attention_multiplier", kv.add_attention_scale),
            ("embedding_multiplier", kv.add_embedding_scale),
            ("residual_multiplier", kv.add_residual_scale),
            ("logits_scaling", kv.add_logit_scale),
        )
        for name, add in multipliers:
            if value := self.config.optional_real(name):
                add(value)
