"""Llama 1 to 3: rotary order undone, rope factors of 3.1, and the choice among three kinds of vocabulary."""

import math
from typing import Any, ClassVar

import gguf
import numpy as np

from llmrun.convert.config import Config, number
from llmrun.convert.model import Defaults, Model, Tensors
from llmrun.convert.vocab import bpe, rank_bpe, sentencepiece
from llmrun.convert.vocab.tokenizer import TokenizerFiles, VocabularyWish
from llmrun.convert.weight import Weight, permuted, values
from llmrun.errors import ConvertError


class Llama(Model):
    arch = gguf.MODEL_ARCH.LLAMA
    model_types = ("llama",)
    defaults: ClassVar[Defaults] = {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": None, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "head_dim": None,
    }  # fmt: skip

    def completed(self, values: dict[str, Any]) -> dict[str, Any]:
        return {**with_kv_heads(values), "head_dim": Config(values).head_dim}

    def source_name(self, name: str) -> str | None:
        return f"model.{name}" if self.hf_name == "LlamaModel" else name

    def extra_tensors(self, kv: gguf.GGUFWriter) -> Tensors:
        rope = self.config.rope.get("full_attention", self.config.rope)
        if str(rope.get("rope_type", "")).lower() == "llama3":
            yield (
                f"{gguf.TENSOR_NAMES[gguf.MODEL_TENSOR.ROPE_FREQS]}.weight",
                values(llama3_factors(rope, self.config)),
            )

    def tensors(self, name: str, weight: Weight, layer: int | None) -> Tensors:
        if name.endswith(("q_proj.weight", "q_proj.bias")):
            weight = permuted(weight, self.config.n_head)
        elif name.endswith(("k_proj.weight", "k_proj.bias")):
            weight = permuted(weight, self.config.n_head_kv)
        yield name, weight

    def add_parameters(self, kv: gguf.GGUFWriter, wanted: gguf.GGMLQuantizationType) -> None:
        self.add_common_parameters(kv, wanted)
        kv.add_vocab_size(self.config.integer("vocab_size"))
        kv.add_rope_dimension_count(self.config.head_dim)

    def add_vocabulary(self, kv: gguf.GGUFWriter, wish: VocabularyWish) -> None:
        add_llama_vocabulary(kv, self.tokenizer, self.config, wish)


def with_kv_heads(values: dict[str, Any]) -> dict[str, Any]:
    """As many key and value heads as heads, where their number is null."""
    if values.get("num_key_value_heads") is None:
        values["num_key_value_heads"] = values["num_attention_heads"]
    return values


def llama3_factors(rope: dict[str, Any], config: Config) -> list[float]:
    """Llama 3.1's divisors of the rotary frequencies, in float32 as torch computes them.

    https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py
    """
    dim = config.head_dim
    base = number("rope_theta", rope.get("rope_theta", 10000.0))
    factor = number("factor", rope.get("factor", 8.0))
    low = number("low_freq_factor", rope.get("low_freq_factor", 1.0))
    high = number("high_freq_factor", rope.get("high_freq_factor", 4.0))
    trained = number("original_max_position_embeddings", rope.get("original_max_position_embeddings", 8192))
    if not (low > 0 and high > low and factor > 0 and base > 0):
        raise ConvertError("config.json: rope_scaling of type llama3 makes no sense", "fetch config.json again")
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    frequencies = np.float32(1) / np.float32(base) ** exponents
    factors = []
    for frequency in frequencies:
        wavelength = np.float32(2 * math.pi) / frequency
        if wavelength < trained / high:
            factors.append(1.0)
        elif wavelength > trained / low:
            factors.append(factor)
        else:
            smooth = (np.float32(trained) / wavelength - np.float32(low)) / np.float32(high - low)
            factors.append(float(np.float32(1) / ((np.float32(1) - smooth) / np.float32(factor) + smooth)))
    return factors


def add_llama_vocabulary(kv: gguf.GGUFWriter, files: TokenizerFiles, config: Config, wish: VocabularyWish) -> None:
    """tokenizer.model, else a tokenizer.json of the same kind, else byte-level BPE (Llama 3)."""
    prefix = files.config.get("add_prefix_space")
    if isinstance(prefix, bool):
        kv.add_add_space_prefix(prefix)
    if files.sentencepiece is not None:
        sentencepiece.add(kv, files, config, wish)
    elif rank_bpe.serves(files):
        if not isinstance(prefix, bool) and not rank_bpe.prepends_space(files):
            kv.add_add_space_prefix(False)
        rank_bpe.add(kv, files, config, wish)
    else:
        bpe.add(kv, files, config, wish)
    n_vocab = config.optional_integer("vocab_size")
    if n_vocab == 32016:  # CodeLlama: ends a fill-in; its other tokens llama.cpp finds by their text
        kv.add_eot_token_id(32010)
    if n_vocab == 49152:  # Granite's small models (and SmolLM): no bos
        kv.add_add_bos_token(False)
