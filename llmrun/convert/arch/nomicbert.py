"""Nomic's BERT (nomic-embed-text v1 and v1.5): rotary positions, gated feed-forward, no biases."""

import gguf

from llmrun.convert.arch.bert import Bert
from llmrun.errors import ConvertError

# What llama.cpp's graph computes; config.json must ask for the same.
_GRAPH = {
    "activation_function": "swiglu", "causal": False, "qkv_proj_bias": False, "mlp_fc1_bias": False,
    "mlp_fc2_bias": False, "prenorm": False, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
}  # fmt: skip
# n_positions counts positions it was never trained on.
_TRAINED = {(8192, 2048): 2048, (2048, 2048): 512}


class NomicBert(Bert):
    arch = gguf.MODEL_ARCH.NOMIC_BERT

    def add_parameters(self, kv: gguf.GGUFWriter, wanted: gguf.GGMLQuantizationType) -> None:
        config = self.config
        if config.get("moe_every_n_layers"):
            raise ConvertError("a NomicBert with experts is not supported", "give --converter PATH")
        if odd := next((name for name, value in _GRAPH.items() if config.get(name) != value), None):
            raise ConvertError(f"config.json: {odd} is {config.get(odd)!r} in a NomicBert", "give --converter PATH")
        trained = (config.integer("n_positions"), config.optional_integer("max_trained_positions") or 2048)
        if trained not in _TRAINED:
            raise ConvertError(f"config.json: {trained[0]} positions in a NomicBert", "give --converter PATH")
        config.values["n_positions"] = _TRAINED[trained]
        super().add_parameters(kv, wanted)
