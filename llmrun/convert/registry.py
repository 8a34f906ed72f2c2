"""Which file converts which architecture: the names config.json uses, each with a module of `arch/` and its class."""

import difflib
from importlib import import_module

from llmrun.convert.files import shown
from llmrun.convert.model import Model
from llmrun.errors import ConvertError

ARCHITECTURES = {
    "BertForMaskedLM": "bert.Bert",
    "BertForSequenceClassification": "bert.Bert",
    "BertModel": "bert.Bert",
    "DistilBertForMaskedLM": "bert.DistilBert",
    "DistilBertForSequenceClassification": "bert.DistilBert",
    "DistilBertModel": "bert.DistilBert",
    "FalconForCausalLM": "falcon.Falcon",
    "GPT2LMHeadModel": "gpt2.GPT2",
    "Gemma2ForCausalLM": "gemma.Gemma2",
    "Gemma3ForCausalLM": "gemma.Gemma3",
    "Gemma3ForConditionalGeneration": "gemma.Gemma3",
    "GemmaForCausalLM": "gemma.Gemma",
    "GraniteForCausalLM": "granite.Granite",
    "LLaMAForCausalLM": "llama.Llama",
    "LlamaForCausalLM": "llama.Llama",
    "LlamaModel": "llama.Llama",
    "MistralForCausalLM": "mistral.Mistral",
    "MixtralForCausalLM": "mixtral.Mixtral",
    "ModernBertForMaskedLM": "modernbert.ModernBert",
    "ModernBertForSequenceClassification": "modernbert.ModernBert",
    "ModernBertModel": "modernbert.ModernBert",
    "NomicBertModel": "nomicbert.NomicBert",
    "Olmo2ForCausalLM": "olmo2.Olmo2",
    "Phi3ForCausalLM": "phi3.Phi3",
    "Qwen2ForCausalLM": "qwen2.Qwen2",
    "Qwen2Model": "qwen2.Qwen2",
    "Qwen2MoeForCausalLM": "qwen2.Qwen2Moe",
    "Qwen3ForCausalLM": "qwen3.Qwen3",
    "Qwen3Model": "qwen3.Qwen3",
    "Qwen3MoeForCausalLM": "qwen3.Qwen3Moe",
    "RWForCausalLM": "falcon.Falcon",
    "RobertaForSequenceClassification": "bert.Roberta",
    "RobertaModel": "bert.Roberta",
    "SmolLM3ForCausalLM": "smollm3.SmolLM3",
    "StableLMEpochForCausalLM": "stablelm.StableLM",
    "StableLmForCausalLM": "stablelm.StableLM",
    "Starcoder2ForCausalLM": "starcoder2.StarCoder2",
    "XLMRobertaForSequenceClassification": "bert.XLMRoberta",
    "XLMRobertaModel": "bert.XLMRoberta",
}


def find_model(hf_name: str) -> type[Model]:
    """The class for an architecture. Raises ConvertError naming near ones where there is none."""
    place = ARCHITECTURES.get(hf_name)
    if place is None:
        near = difflib.get_close_matches(hf_name, ARCHITECTURES, n=4, cutoff=0.4)
        raise ConvertError(
            f"architecture {shown(hf_name)} is not supported"
            + (f"; near ones are {', '.join(near)}" if near else ""),
            "--converter PATH runs llama.cpp's own convert_hf_to_gguf.py instead",
        )
    module, _, name = place.partition(".")
    found: type[Model] = getattr(import_module(f"llmrun.convert.arch.{module}"), name)
    return found
