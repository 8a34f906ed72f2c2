"""What every text architecture shares: its metadata keys, the naming of its tensors, its vocabulary.

An architecture is a subclass in `arch/` that states its differences. It is asked first for its parameters and
its tensors' names and shapes; numbers are read only when the file is written.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import gguf

from llmrun.convert.checkpoint import Checkpoint
from llmrun.convert.config import Config, number, positive
from llmrun.convert.encode import Output, file_type, tensor_type
from llmrun.convert.files import shown
from llmrun.convert.vocab import bpe
from llmrun.convert.vocab.tokenizer import TokenizerFiles, VocabularyWish
from llmrun.convert.weight import WEIGHT_DTYPES, Weight, stack, stored
from llmrun.errors import ConvertError

Tensors = Iterable[tuple[str, Weight]]
Defaults = Mapping[str, Any]

_UNUSED = (".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq")


class Model:
    """One checkpoint being converted. `wanted` is the type of its matrices."""

    arch: ClassVar[gguf.MODEL_ARCH]
    model_types: ClassVar[tuple[str, ...]] = ()
    """config.json's `model_type` for which transformers would fill in `defaults`."""
    defaults: ClassVar[Defaults] = {}
    """What transformers 4.57's configuration class holds where config.json is silent."""

    def __init__(self, folder: Path, values: Mapping[str, Any], hf_name: str) -> None:
        self.folder = folder
        self.hf_name = hf_name
        self.tokenizer = TokenizerFiles(folder)
        known = values.get("model_type") in self.model_types
        self.config = Config(self.completed({**self.defaults, **values}) if known else values)
        self.n_layer = self.config.integer("n_layers", "num_hidden_layers", "n_layer", "num_layers")
        if self.n_layer > 10_000:
            raise ConvertError(f"config.json: {self.n_layer} layers", "fetch config.json again: it is damaged")
        self.names = gguf.get_tensor_name_map(self.arch, self.n_layer)
        self.notes: list[str] = []

    def leave_out(self, what: str) -> None:
        """Notes, once, that a part of the checkpoint has no place in the file."""
        note = f"{what} of the checkpoint is left out: this is its text model alone"
        if note not in self.notes:
            self.notes.append(note)

    # What an architecture may change.

    def completed(self, values: dict[str, Any]) -> dict[str, Any]:
        """`values` with what transformers derives from other settings."""
        return values

    def source_name(self, name: str) -> str | None:
        """A stored tensor's name as the rest of the class knows it, or None to leave the tensor out."""
        return name

    def extra_tensors(self, kv: gguf.GGUFWriter) -> Tensors:
        """Tensors that no shard has, under GGUF names; they come first in the file."""
        return ()

    def tensors(self, name: str, weight: Weight, layer: int | None) -> Tensors:
        """What one stored tensor becomes, under Hugging Face names; nothing while parts are still to come."""
        yield name, weight

    def unfinished(self) -> Sequence[str]:
        """Stored tensors still waiting for others when all have been seen."""
        return ()

    def add_parameters(self, kv: gguf.GGUFWriter, wanted: gguf.GGMLQuantizationType) -> None:
        self.add_common_parameters(kv, wanted)

    def add_vocabulary(self, kv: gguf.GGUFWriter, wish: VocabularyWish) -> None:
        bpe.add(kv, self.tokenizer, self.config, wish)

    # What they all share.

    def outputs(self, checkpoint: Checkpoint, kv: gguf.GGUFWriter, wanted: gguf.GGMLQuantizationType) -> list[Output]:
        """Every tensor of the file, in order. Raises ConvertError for a tensor that has no place in it."""
        outputs: dict[str, Output] = {}
        for name, weight in self._named(checkpoint, kv):
            self._check(name, weight)
            if name in outputs:
                raise ConvertError(f"two stored tensors become {name}", "the checkpoint is damaged")
            outputs[name] = Output(name, weight, tensor_type(name, weight.shape, wanted))
        if left := self.unfinished():
            raise ConvertError(
                f"{len(left)} tensors belong to sets that are not complete: {shown(left[0])}",
                "the checkpoint is incomplete: fetch it again",
            )
        self._check_layers(outputs)
        return list(outputs.values())

    def _check_layers(self, names: Iterable[str]) -> None:
        there = {int(name.split(".")[1]) for name in names if name.startswith("blk.")}
        if missing := set(range(self.n_layer)) - there:
            raise ConvertError(
                f"config.json says {self.n_layer} layers, and the weights have none for layer {min(missing)}",
                "the checkpoint is incomplete, or config.json is of another model: fetch it again",
            )

    def _named(self, checkpoint: Checkpoint, kv: gguf.GGUFWriter) -> Iterator[tuple[str, Weight]]:
        yield from self.extra_tensors(kv)
        for stored_name, tensor in checkpoint.tensors.items():
            name = self.source_name(stored_name)
            if name is None or name.endswith(_UNUSED):
                continue
            layer = next((int(part) for part in name.split(".") if part.isdecimal()), None)
            for hf_name, weight in self.tensors(name, stored(tensor), layer):
                yield self.mapped(hf_name), weight

    def mapped(self, name: str) -> str:
        """The GGUF name of a tensor."""
        found: str | None = self.names.get_name(key=name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise ConvertError(
                f"tensor {shown(name)} has no place in a {gguf.MODEL_ARCH_NAMES[self.arch]} file",
                "the checkpoint is not what its config.json says, or newer than llmrun: "
                "--converter PATH runs llama.cpp's own script",
            )
        return found

    def _check(self, name: str, weight: Weight) -> None:
        if weight.dtype not in WEIGHT_DTYPES:
            raise ConvertError(
                f"{name} is stored as {weight.dtype}; llmrun converts {', '.join(WEIGHT_DTYPES)}",
                "take the unquantized checkpoint, or give --converter PATH",
            )
        if len(name.encode()) > 63 or len(weight.shape) > 4 or 0 in weight.shape:
            raise ConvertError(
                f"{shown(name)} has shape {weight.shape}, which no GGUF can hold", "the checkpoint is damaged"
            )

    def add_common_parameters(self, kv: gguf.GGUFWriter, wanted: gguf.GGMLQuantizationType) -> None:
        """The keys of most architectures, each where config.json (or a default) has its setting."""
        config = self.config
        kv.add_block_count(self.n_layer)
        counts = (
            (("max_position_embeddings", "n_ctx", "n_positions"), kv.add_context_length),
            (("hidden_size", "n_embd", "dim"), kv.add_embedding_length),
            (("intermediate_size", "n_inner", "hidden_dim"), kv.add_feed_forward_length),
            (("num_attention_heads", "n_head", "n_heads"), kv.add_head_count),
            (("num_key_value_heads", "n_kv_heads"), kv.add_head_count_kv),
        )
        for names, add in counts:
            if (count := config.optional_integer(*names)) is not None:
                add(count)
        if config.get("is_causal") is False:
            kv.add_causal_attention(False)
        self.add_rope(kv)
        if (eps := config.optional_real("rms_norm_eps", "norm_eps")) is not None:
            kv.add_layer_norm_rms_eps(eps)
        if (eps := config.optional_real("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")) is not None:
            kv.add_layer_norm_eps(eps)
        if (count := config.optional_integer("num_local_experts", "num_experts", "n_routed_experts")) is not None:
            kv.add_expert_count(count)
        if (count := config.optional_integer("num_experts_per_tok", "num_experts_per_token")) is not None:
            kv.add_expert_used_count(count)
        if (count := config.optional_integer("head_dim")) is not None:
            kv.add_key_length(count)
            kv.add_value_length(count)
        kv.add_file_type(file_type(wanted))

    def add_rope(self, kv: gguf.GGUFWriter) -> None:
        rope = self.config.rope.get("full_attention", self.config.rope)
        kind, factor = rope.get("rope_type"), rope.get("factor")
        if kind == "linear" and factor is not None:
            kv.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            kv.add_rope_scaling_factor(number("factor", factor))
        elif kind == "yarn" and factor is not None:
            self._add_yarn(kv, rope)
        elif kind in ("su", "longrope"):
            kv.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        elif kind not in (None, "default", "llama3", "dynamic"):
            self.notes.append(f"rope scaling {shown(repr(kind))} is not known and is left out")
        if (theta := rope.get("rope_theta")) is not None:
            kv.add_rope_freq_base(number("rope_theta", theta))
        if (theta := self.config.rope.get("sliding_attention", {}).get("rope_theta")) is not None:
            kv.add_rope_freq_base_swa(number("rope_local_base_freq", theta))

    def _add_yarn(self, kv: gguf.GGUFWriter, rope: Mapping[str, Any]) -> None:
        kv.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        kv.add_rope_scaling_factor(number("factor", rope["factor"]))
        trained = rope.get("original_max_position_embeddings")
        if type(trained) is not int:
            raise ConvertError(
                "config.json: yarn scaling without original_max_position_embeddings",
                "add the context the model was first trained with to rope_scaling",
            )
        kv.add_rope_scaling_orig_ctx_len(positive("original_max_position_embeddings", trained))
        settings = (
            ("extrapolation_factor", kv.add_rope_scaling_yarn_ext_factor),
            (
                "attention_factor" if "attention_factor" in rope else "attn_factor",
                kv.add_rope_scaling_yarn_attn_factor,
            ),
            ("beta_fast", kv.add_rope_scaling_yarn_beta_fast),
            ("beta_slow", kv.add_rope_scaling_yarn_beta_slow),
        )
        for name, add in settings:
            if (value := rope.get(name)) is not None:
                add(number(name, value))


class Experts:
    """Gathers one layer's experts, stored apart, and stacks them when the last has come."""

    def __init__(self, n_expert: int, order: Sequence[str]) -> None:
        """`order`: the projections of one expert, as the stacked tensors are to follow one another."""
        self.n_expert = n_expert
        self.order = order
        self.waiting: dict[str, dict[tuple[int, str], Weight]] = {}

    def add(self, name: str, weight: Weight) -> Iterator[tuple[str, Weight]]:
        """`name` is PREFIX.experts.N.PROJECTION.weight; yields PREFIX.experts.PROJECTION.weight, all at once."""
        prefix, _, rest = name.partition(".experts.")
        parts = rest.split(".")
        if len(parts) != 3 or not parts[0].isdecimal() or parts[1] not in self.order or parts[2] != "weight":
            raise ConvertError(f"tensor {shown(name)} is no expert's", "config.json and the weights do not match")
        layer = self.waiting.setdefault(prefix, {})
        layer[int(parts[0]), parts[1]] = weight
        if len(layer) < self.n_expert * len(self.order):
            return
        del self.waiting[prefix]
        for projection in self.order:
            every = [layer.get((i, projection)) for i in range(self.n_expert)]
            if None in every:
                raise ConvertError(f"{shown(prefix)} lacks an expert's {projection}", "fetch the checkpoint again")
            yield f"{prefix}.experts.{projection}.weight", stack([one for one in every if one is not None])

    def unfinished(self) -> list[str]:
        return [f"{prefix}.experts.{i}.{what}" for prefix, layer in self.waiting.items() for i, what in layer]


def plus_one(weight: Weight) -> Weight:
    """Gemma stores its norms less one."""
    return replace(weight, plus=1.0)
