"""Mixtral: Mistral with stacked experts."""

from collections.abc import Sequence
from typing import ClassVar

from llmrun.convert.arch.mistral import Mistral
from llmrun.convert.model import Defaults, Experts, Tensors
from llmrun.convert.weight import Weight


class Mixtral(Mistral):
    model_types = ("mixtral",)
    defaults: ClassVar[Defaults] = {
        **Mistral.defaults, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
        "num_local_experts": 8, "num_experts_per_tok": 2,
    }  # fmt: skip

    experts: Experts | None = None

    def tensors(self, name: str, weight: Weight, layer: int | None) -> Tensors:
        if ".experts." not in name:
            return super().tensors(name, weight, layer)
        if self.experts is None:
            self.experts = Experts(self.config.integer("num_local_experts"), ("w1", "w2", "w3"))
        return self.experts.add(name, weight)

    def unfinished(self) -> Sequence[str]:
        return self.experts.unfinished() if self.experts else ()
