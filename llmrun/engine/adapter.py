"""LoRA adapters: small files of low-rank changes to a model's weights, applied while it runs."""

import ctypes
import os
from pathlib import Path
from typing import NamedTuple

from llmrun.engine import capi
from llmrun.engine.context import Context
from llmrun.errors import EngineError, ModelFileError
from llmrun.gguf.header import Header


class Lora(NamedTuple):
    """An adapter file and how strongly it is applied; 1 is as it was trained."""

    path: Path
    scale: float = 1.0


def check_adapter(adapter: Header, base: Header, path: Path) -> None:
    """Raise ModelFileError unless `adapter` is a LoRA for the architecture of `base`, tensor by tensor."""
    if adapter.metadata.get("general.type") != "adapter" or adapter.metadata.get("adapter.type") != "lora":
        raise ModelFileError(f"{path.name} is not a LoRA adapter", "--lora takes adapters in GGUF form")
    wanted, has = (str(header.metadata.get("general.architecture")) for header in (base, adapter))
    if wanted != has:
        raise ModelFileError(f"{path.name} is an adapter for {has}, the model is {wanted}")
    shapes = {tensor.name: tensor.shape for tensor in base.tensors}
    for tensor in adapter.tensors:
        name, _, part = tensor.name.rpartition(".lora_")
        shape = shapes.get(name)
        # A is (n_in, rank) and B (rank, n_out) of a weight (n_in, n_out), ne0 first.
        fits = shape is not None and len(tensor.shape) > 1 and tensor.shape[part == "b"] == shape[part == "b"]
        if part in ("a", "b") and name != "token_embd.weight" and not fits:
            raise ModelFileError(f"{path.name} does not fit this model: {tensor.name} has no such weight to change")


def apply_adapters(context: Context, adapters: tuple[Lora, ...]) -> None:
    """Load the adapters (the model owns them) and apply them in the context. Raises EngineError."""
    if not adapters:
        return
    lib = capi.lib()
    handles = (lib.llama_adapter_lora_p_ctypes * len(adapters))()
    for i, adapter in enumerate(adapters):
        capi.log.lines.clear()
        handle = lib.llama_adapter_lora_init(context.model.pointer, os.fsencode(adapter.path))
        if not handle:
            reason = capi.log.last_error("llama.cpp gave no reason")
            raise EngineError(f"{adapter.path.name} does not load: {reason}")
        handles[i] = handle
    scales = (ctypes.c_float * len(adapters))(*(adapter.scale for adapter in adapters))
    if lib.llama_set_adapters_lora(context.pointer, handles, len(adapters), scales) != 0:
        raise EngineError("llama.cpp could not apply the LoRA adapters")
