"""Qwen2 and 2.5, dense and with experts; embedding models among them state their pooling."""

from collections.abc import Sequence
from typing import Any, ClassVar

import gguf

from llmrun.convert.arch.llama import with_kv_heads
from llmrun.convert.config import Config
from llmrun.convert.model import Defaults, Experts, Model, Tensors
from llmrun.convert.pooling import add_pooling
from llmrun.convert.vocab import bpe, sentencepiece
from llmrun.convert.vocab.tokenizer import VocabularyWish
from llmrun.convert.weight import Weight, changed

COMMON = {
    "vocab_size": 151936, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
}  # fmt: skip


class Qwen2(Model):
    arch = gguf.MODEL_ARCH.QWEN2
    model_types = ("qwen2",)
    defaults: ClassVar[Defaults] = {
        **COMMON, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32,
    }  # fmt: skip

    def completed(self, values: dict[str, Any]) -> dict[str, Any]:
        return with_kv_heads(values)

    def source_name(self, name: str) -> str | None:
        return name if self.hf_name.endswith("ForCausalLM") else f"model.{name}"

    def add_parameters(self, kv: gguf.GGUFWriter, wanted: gguf.GGMLQuantizationType) -> None:
        self.add_common_parameters(kv, wanted)
        add_pooling(kv, self.folder, self.config)

    def add_vocabulary(self, kv: gguf.GGUFWriter, wish: VocabularyWish) -> None:
        if self.tokenizer.sentencepiece is not None:
            sentencepiece.add(kv, self.tokenizer, self.config, wish)
        else:
            bpe.add(kv, self.tokenizer, self.config, wish)


class Qwen2Moe(Model):
    arch = gguf.MODEL_ARCH.QWEN2MOE
    model_types = ("qwen2_moe",)
    defaults: ClassVar[Defaults] = {
        **COMMON, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
        "num_attention_heads": 16, "num_key_value_heads": 16, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632, "num_experts": 60, "num_experts_per_tok": 4,
    }  # fmt: skip

    experts: Experts | None = None

    def add_parameters(self, kv: gguf.GGUFWriter, wanted: gguf.GGMLQuantizationType) -> None:
        self.add_common_parameters(kv, wanted)
        if (count := self.config.optional_integer("moe_intermediate_size")) is not None:
            kv.add_expert_feed_forward_length(count)
        if (count := self.config.optional_integer("shared_expert_intermediate_size")) is not None:
            kv.add_expert_shared_feed_forward_length(count)

    def tensors(self, name: str, weight: Weight, layer: int | None) -> Tensors:
        if ".experts." not in name:
            yield name, weight
        elif name.removesuffix(".weight").endswith(".gate_up_proj"):
            # Stored stacked already, gate above up.
            half = weight.shape[-2] // 2
            shape = (*weight.shape[:-2], half, weight.shape[-1])
            base = name.removesuffix(".weight").removesuffix(".gate_up_proj")
            yield f"{base}.gate_proj.weight", changed(weight, lambda array: array[..., :half, :], shape)
            yield f"{base}.up_proj.weight", changed(weight, lambda array: array[..., half:, :], shape)
        elif name.removesuffix(".weight").endswith(".experts.down_proj"):
            yield name.removesuffix(".weight") + ".weight", weight
        else:
            if self.experts is None:
                self.experts = Experts(n_expert(self.config), ("down_proj", "gate_proj", "up_proj"))
            yield from self.experts.add(name, weight)

    def unfinished(self) -> Sequence[str]:
        return self.experts.unfinished() if self.experts else ()


def n_expert(config: Config) -> int:
    return config.integer("num_local_experts", "num_experts")
