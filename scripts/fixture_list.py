"""The fixtures: which checkpoint each is, with which tokenizer, and what about it is worth converting."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from fixture_berts import berts
from fixture_checkpoints import Fixture
from fixture_tokenizers import Tokenizers
from tokenizers import processors

_SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def fixtures(models: Path, archives: Path) -> Iterator[Fixture]:
    tokenizers = Tokenizers(models, archives)
    for family in (llama_like, qwens, gemmas, phis, others, berts):
        yield from family(tokenizers)


def _bos(token: str, id: int) -> Any:
    return processors.TemplateProcessing(
        single=f"{token}:0 $A:0", pair=f"{token}:0 $A:0 {token}:1 $B:1", special_tokens=[(token, id)]
    )


def llama_like(t: Tokenizers) -> Iterator[Fixture]:
    fast = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True}
    llama3 = {
        **fast, "bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "chat_template": _CHATML,
        "model_max_length": 131072,
    }  # fmt: skip
    scaling = {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    yield Fixture(
        "llama3", "Tiny-Llama-3.2-1B-Instruct", "Llama 3.2: rope factors, tied, Llama 3's ids, eos list",
        "LlamaConfig",
        {**_SMALL, "head_dim": 64, "intermediate_size": 128, "num_hidden_layers": 1,
         "vocab_size": 128256, "rope_theta": 500000.0, "max_position_embeddings": 131072, "rope_scaling": scaling,
         "tie_word_embeddings": True, "bos_token_id": 128000, "eos_token_id": [128001, 128009]},
        t.cut("llama-bpe", llama3, _bos("<|begin_of_text|>", 128000), ignore_merges=True),
        files={"generation_config.json": {"eos_token_id": [128001, 128009], "temperature": 0.6, "top_p": 0.9}},
    )  # fmt: skip
    yield Fixture(
        "llama_yarn", "tiny-yarn-llama-7b-64k", "yarn scaling, biases, f32 stored, named templates, no head_dim",
        "LlamaConfig",
        {**_SMALL, "vocab_size": 512, "attention_bias": True, "mlp_bias": True, "max_position_embeddings": 8192,
         "rope_scaling": {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 512,
                          "beta_fast": 32.0, "beta_slow": 1.0}},
        t.spm(chat_template=[{"name": "default", "template": _CHATML}, {"name": "tool use", "template": "x"}]),
        dtype="float32", drop=("head_dim", "num_key_value_heads"), set={"num_key_value_heads": 2},
    )  # fmt: skip
    yield Fixture(
        "llama_linear", "CodeTiny-7b", "linear scaling by the old key, CodeLlama's vocabulary size, f16, old buffers",
        "LlamaConfig",
        {**_SMALL, "hidden_size": 32, "vocab_size": 32016, "rope_scaling": {"type": "linear", "factor": 4.0},
         "rope_theta": 1000000},
        t.spm(add_eos_token=False), dtype="float16", set={"rope_scaling": {"type": "linear", "factor": 4.0}},
        rename=_with_inv_freq,
    )  # fmt: skip
    yield Fixture(
        "mistral", "Tiny-Mistral-7B-v0.3", "Mistral without head_dim, sentencepiece, three shards",
        "MistralConfig", {**_SMALL, "vocab_size": 512, "rope_theta": 1000000.0}, t.spm(), shard_size="60KB",
        drop=("head_dim", "sliding_window"),
    )  # fmt: skip
    nemo = {**fast, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_prefix_space": False}
    yield Fixture(
        "mistral_nemo", "Tiny-Mistral-Nemo-Instruct-2407", "Mistral with head_dim and byte-level BPE",
        "MistralConfig", {**_SMALL, "head_dim": 24, "vocab_size": 420, "rope_theta": 1000000.0},
        t.trained(nemo, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], ["[TOOL_CALLS]"], _bos("<s>", 1)),
        pre="tekken", files={"chat_template.jinja": _CHATML,
                             "additional_chat_templates/rag.jinja": "rag {{ messages }}"},
    )  # fmt: skip
    yield Fixture(
        "mixtral", "Tiny-Mixtral-8x7B-Instruct-v0.1", "experts stored apart",
        "MixtralConfig",
        {**_SMALL, "vocab_size": 512, "num_local_experts": 4, "num_experts_per_tok": 2}, t.spm(), dtype="float16",
        drop=("head_dim", "rms_norm_eps", "sliding_window"),
    )  # fmt: skip
    granite = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
               "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "add_bos_token": False,
               "add_prefix_space": False, "chat_template": _CHATML}  # fmt: skip
    yield Fixture(
        "granite", "granite-3.3-tiny-instruct", "multipliers, 49152 tokens: no bos",
        "GraniteConfig",
        {**_SMALL, "hidden_size": 32, "vocab_size": 49152, "embedding_multiplier": 12.0, "logits_scaling": 8.0,
         "residual_multiplier": 0.22, "attention_multiplier": 0.015625, "tie_word_embeddings": True,
         "rope_theta": 10000000.0, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0},
        t.cut("starcoder", granite),
    )  # fmt: skip
    yield Fixture(
        "smollm3", "Tiny-SmolLM3-3B", "layers without rope, template in its own file, no bos in the template",
        "SmolLM3Config",
        {**_SMALL, "num_hidden_layers": 4, "vocab_size": 420, "tie_word_embeddings": True, "bos_token_id": 0,
         "eos_token_id": 1, "pad_token_id": 0},
        t.trained({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": "<|im_end|>",
                   "pad_token": "<|im_end|>"},
                  ["<|begin_of_text|>", "<|im_end|>", "<|im_start|>"], ["<think>", "</think>"],
                  _bos("<|begin_of_text|>", 0)),
        pre="smaug-bpe", files={"chat_template.jinja": _CHATML}, drop=("no_rope_layers", "layer_types"),
    )  # fmt: skip


def _with_inv_freq(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    buffers = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(4) for i in range(2)}
    return {**tensors, **buffers}


def qwens(t: Tokenizers) -> Iterator[Fixture]:
    qwen = {
        "tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "eos_token": "<|im_end|>", "unk_token": None,
        "pad_token": "<|endoftext|>", "add_prefix_space": False, "add_bos_token": False, "chat_template": _CHATML,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    yield Fixture(
        "qwen2", "Tiny-Qwen2.5-0.5B-Instruct", "biases on q, k, v, Qwen's ids, card with awkward values",
        "Qwen2Config",
        {**_SMALL, "hidden_size": 32, "vocab_size": 151936, "tie_word_embeddings": True, "rope_theta": 1000000.0,
         "bos_token_id": 151643, "eos_token_id": 151645},
        t.cut("qwen2", qwen), drop=("layer_types", "rms_norm_eps"),
        files={"README.md": "---\nlicense: [apache-2.0, mit]\nlanguage: [en, zh]\npipeline_tag: text-generation\n"
                            "base_model: https://huggingface.co/Qwen/Qwen2.5-0.5B\ntags:\n- chat\n"
                            "datasets:\n- org/some-data-v2\n---\n# Tiny\n",
               "generation_config.json": {"repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8, "top_k": 20}},
    )  # fmt: skip
    small = {
        "tokenizer_class": "Qwen2TokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "added_tokens_decoder": {
            "0": {"content": "<|endoftext|>", "special": True}, "1": {"content": "<|im_end|>", "special": True},
            "2": {"content": "<|im_start|>", "special": True}, "400": {"content": "<tool_call>", "special": False},
        },
    }  # fmt: skip
    special = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
    yield Fixture(
        "qwen2_moe", "Qwen1.5-MoE-A2.7B-tiny", "routed and shared experts",
        "Qwen2MoeConfig",
        {**_SMALL, "vocab_size": 416, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
         "shared_expert_intermediate_size": 96},
        t.trained(small, special, ["<tool_call>"]), pre="qwen2",
    )  # fmt: skip
    yield Fixture(
        "qwen3_moe", "Tiny-Qwen3-30B-A3B", "experts, q and k norms, rows that no Q8_0 block fits",
        "Qwen3MoeConfig",
        {**_SMALL, "head_dim": 32, "vocab_size": 416, "num_experts": 4, "num_experts_per_tok": 2,
         "norm_topk_prob": True, "moe_intermediate_size": 40, "tie_word_embeddings": False, "rope_theta": 1000000.0},
        t.trained(small, special, ["<tool_call>"]), pre="qwen2",
    )  # fmt: skip


def gemmas(t: Tokenizers) -> Iterator[Fixture]:
    shape = {**_SMALL, "head_dim": 32, "num_key_value_heads": 1, "vocab_size": 520}
    yield Fixture("gemma", "tiny-gemma-2b", "Gemma 1, f16: norms rounded in f16", "GemmaConfig", shape, t.gemma(),
                  dtype="float16", set={"hidden_activation": None})  # fmt: skip
    yield Fixture(
        "gemma2", "tiny-gemma-2-2b-it", "soft caps, sliding window, head stored and dropped", "Gemma2Config",
        {**shape, "query_pre_attn_scalar": 32, "sliding_window": 64}, t.gemma(), rename=_with_head,
        drop=("layer_types",),
    )  # fmt: skip
    yield Fixture(
        "gemma3_mm", "tiny-gemma-3-4b-it", "the text of a multimodal checkpoint, linear rope scaling",
        "Gemma3Config",
        {"text_config": {**shape, "num_hidden_layers": 6, "sliding_window": 512, "query_pre_attn_scalar": 32,
                         "rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
         "vision_config": {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
                           "num_attention_heads": 2, "image_size": 28, "patch_size": 14},
         "eos_token_id": [1, 9], "mm_tokens_per_image": 4},
        t.gemma(), model_class="AutoModelForImageTextToText",
    )  # fmt: skip


def _with_head(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}


def phis(t: Tokenizers) -> Iterator[Fixture]:
    long = [1.0 + 0.1 * i for i in range(8)]
    added = {
        "512": {"content": "<|user|>", "special": False, "normalized": False, "rstrip": True},
        "513": {"content": "<|end|>", "special": True, "normalized": False, "rstrip": True},
    }
    yield Fixture(
        "phi3", "Phi-3.5-tiny-128k-instruct", "rope factors for long contexts, sliding window, added tokens",
        "Phi3Config",
        {**_SMALL, "vocab_size": 544, "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
         "sliding_window": 262144, "pad_token_id": 0, "eos_token_id": 2,
         "rope_scaling": {"type": "longrope", "long_factor": [2 * f for f in long], "short_factor": long}},
        _phi_tokenizer(t, added), set={"eos_token_id": 513},
    )  # fmt: skip
    yield Fixture(
        "phi4", "tiny-phi-4-mini", "part of a head rotated, byte-level BPE, no sliding window, tied",
        "Phi3Config",
        {**_SMALL, "vocab_size": 416, "partial_rotary_factor": 0.75, "tie_word_embeddings": True,
         "max_position_embeddings": 16384, "pad_token_id": 0, "eos_token_id": 0, "bos_token_id": 0},
        t.trained({"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|endoftext|>", "eos_token": "<|end|>",
                   "unk_token": "<|endoftext|>", "add_prefix_space": False},
                  ["<|endoftext|>", "<|end|>"], ["<|user|>"]),
        pre="gpt-4o", drop=("original_max_position_embeddings", "rope_scaling"),
    )  # fmt: skip


def _phi_tokenizer(t: Tokenizers, added: dict[str, Any]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        t.spm()(folder)
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        config["added_tokens_decoder"].update(added)
        config["eos_token"] = "<|end|>"
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        found = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        for id, token in added.items():
            flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
            found["added_tokens"].append({**flags, **token, "id": int(id)})
        (folder / "tokenizer.json").write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
        (folder / "added_tokens.json").write_text(json.dumps({"<|user|>": 512, "<|end|>": 513}), encoding="utf-8")

    return write


def others(t: Tokenizers) -> Iterator[Fixture]:
    neox = {"tokenizer_class": "GPTNeoXTokenizer", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
            "unk_token": "<|endoftext|>", "pad_token": "<|padding|>", "add_prefix_space": False}  # fmt: skip
    gpt2 = {"tokenizer_class": "GPT2Tokenizer", "model_max_length": 1024}
    yield Fixture(
        "olmo2", "OLMo-2-tiny-Instruct", "norms after the blocks, q and k norms over all heads", "Olmo2Config",
        {**_SMALL, "vocab_size": 416, "rope_theta": 500000, "bos_token_id": None, "eos_token_id": 0,
         "pad_token_id": 1},
        t.trained({**neox, "tokenizer_class": "GPT2Tokenizer"}, ["<|endoftext|>", "<|padding|>"], ["<|user|>"]),
        pre="dbrx",
    )  # fmt: skip
    yield Fixture(
        "gpt2", "tiny-gpt2", "GPT-2 with its ids, Conv1D, f32", "GPT2Config",
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 50257}, t.cut("gpt-2", gpt2), dtype="float32",
        set={"n_ctx": 1024}, rename=_without_prefix,
    )  # fmt: skip
    stablelm = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                "vocab_size": 416, "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip
    yield Fixture(
        "stablelm", "stablelm-2-tiny", "part of a head rotated, biases, f16", "StableLmConfig",
        {**stablelm, "num_key_value_heads": 4, "use_qkv_bias": True, "partial_rotary_factor": 0.25},
        t.trained({**neox, "tokenizer_class": "GPT2Tokenizer"}, ["<|endoftext|>"], []), dtype="float16",
        pre="stablelm2", drop=("partial_rotary_factor",),
    )  # fmt: skip
    yield Fixture(
        "stablelm_12b", "stablelm-2-12b-tiny", "one norm a head, parallel residual", "StableLmConfig",
        {**stablelm, "num_key_value_heads": 2, "qk_layernorm": True, "use_parallel_residual": True},
        t.trained(neox, ["<|endoftext|>", "<|padding|>"], []), pre="stablelm2",
    )  # fmt: skip
    yield Fixture(
        "starcoder2", "starcoder2-tiny", "StarCoder's ids, biases everywhere", "Starcoder2Config",
        {**_SMALL, "hidden_size": 32, "vocab_size": 49152, "bos_token_id": 0, "eos_token_id": 0,
         "sliding_window": 4096},
        t.cut("starcoder", {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|endoftext|>",
                            "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}),
    )  # fmt: skip
    falcon = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "layer_norm_epsilon": 1e-5}
    fast = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>",
            "model_input_names": ["input_ids", "attention_mask"]}  # fmt: skip
    yield Fixture(
        "falcon", "falcon-7b-tiny", "multi-query, Falcon's ids", "FalconConfig",
        {**falcon, "hidden_size": 32, "vocab_size": 65024, "num_kv_heads": 1}, t.cut("falcon", fast),
        drop=("ffn_hidden_size",),
    )  # fmt: skip
    yield Fixture(
        "falcon_40b", "falcon-40b-tiny", "groups of heads, two norms a layer, biases", "FalconConfig",
        {**falcon, "vocab_size": 416, "num_kv_heads": 2, "new_decoder_architecture": True, "bias": False},
        t.trained(fast, ["<|endoftext|>"], []), pre="falcon",
    )  # fmt: skip


def _without_prefix(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
