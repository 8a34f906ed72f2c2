"""Where llama.cpp keeps each tensor: with the input, a layer, its experts, or the output; and in which bytes.

Sources: `load_tensors` and `create_tensor` (src/llama-model.cpp, src/llama-model-loader.cpp), the tensor table of
src/llama-arch.cpp, and `ggml_repack_get_optimal_repack_type` (ggml/src/ggml-cpu/repack.cpp).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from llmrun.gguf.header import TensorInfo
from llmrun.plan.sizes import pad

HOST_ALIGNMENT = 32
DEVICE_ALIGNMENT = 128

# For each instruction set: the types that the CPU backend rearranges, and the multiple of rows that each needs.
_REPACKED: dict[str, dict[str, int]] = {
    "AVX512": {"Q2_K": 8},
    "AVX2": {"Q4_0": 8, "Q4_K": 8, "IQ4_NL": 8, "MXFP4": 8},
    "DOTPROD": {
        "Q4_0": 4, "Q4_K": 8, "Q5_K": 8, "Q6_K": 8, "IQ4_NL": 4, "MXFP4": 4, "Q8_0": 4, "Q1_0": 4,
    },
}  # fmt: skip
_OUTPUT = ("output", "cls", "dense_", "altup_")


class Weights(NamedTuple):
    """Tensors by place. `experts` are those of routed experts, kept apart from the `layers` they belong to."""

    input: tuple[TensorInfo, ...]
    layers: tuple[tuple[TensorInfo, ...], ...]
    experts: tuple[tuple[TensorInfo, ...], ...]
    output: tuple[TensorInfo, ...]
    tied: tuple[TensorInfo, ...]
    """The token embedding where it is the output matrix too: loaded again wherever the output runs."""
    indexer_widths: tuple[int, ...]
    """Elements of a sparse attention indexer's key, 0 for layers without one."""


def sort_tensors(tensors: Iterable[TensorInfo], n_layer: int) -> Weights:
    """Sort a model's tensors. Those of blocks from `n_layer` on are prediction heads, which stay unloaded."""
    input: list[TensorInfo] = []
    output: list[TensorInfo] = []
    layers: list[list[TensorInfo]] = [[] for _ in range(n_layer)]
    experts: list[list[TensorInfo]] = [[] for _ in range(n_layer)]
    indexers = [0] * n_layer
    for tensor in tensors:
        head, _, rest = tensor.name.partition(".")
        number, _, kind = rest.partition(".")
        if head == "blk" and number.isdecimal():
            layer = int(number)
            if layer < n_layer:
                (experts if "_exps" in kind else layers)[layer].append(tensor)
                if kind == "indexer.attn_k.weight" and len(tensor.shape) == 2:
                    indexers[layer] = tensor.shape[1]
        elif head.startswith(_OUTPUT):
            output.append(tensor)
        elif head == "token_embd_norm" and n_layer:
            layers[0].append(tensor)
        else:
            input.append(tensor)
    untied = any(tensor.name == "output.weight" for tensor in output)
    return Weights(
        input=tuple(input),
        layers=tuple(map(tuple, layers)),
        experts=tuple(map(tuple, experts)),
        output=tuple(output),
        tied=() if untied else tuple(tensor for tensor in input if tensor.name == "token_embd.weight"),
        indexer_widths=tuple(indexers),
    )


def device_bytes(tensors: Iterable[TensorInfo]) -> int:
    """Bytes of tensors in a device's buffer."""
    return sum(pad(tensor.n_bytes, DEVICE_ALIGNMENT) for tensor in tensors)


class HostBytes(NamedTuple):
    """`plain` bytes are mapped from the file or read as they are; `repacked` ones are rearranged copies."""

    plain: int
    repacked: int

    @property
    def total(self) -> int:
        return self.plain + self.repacked


def host_bytes(
    input: Sequence[TensorInfo], rest: Sequence[TensorInfo], tied: Sequence[TensorInfo], features: frozenset[str]
) -> HostBytes:
    """Bytes of tensors that stay with the CPU. `rest` are of layers and output; `tied` is `Weights.tied` where
    the output runs here, which costs a copy only if that copy is rearranged.
    """
    repacked = [tensor for tensor in (*rest, *tied) if is_repacked(tensor, features)]
    plain = [*input, *(tensor for tensor in rest if not is_repacked(tensor, features))]
    return HostBytes(
        sum(pad(tensor.n_bytes, HOST_ALIGNMENT) for tensor in plain),
        sum(pad(tensor.n_bytes, HOST_ALIGNMENT) for tensor in repacked),
    )


def is_repacked(tensor: TensorInfo, features: frozenset[str]) -> bool:
    """Whether the CPU backend rearranges a matrix. `features` are llama.cpp's names (llama_print_system_info)."""
    is_matrix = len(tensor.shape) == 2 or (len(tensor.shape) == 3 and "_exps" in tensor.name)
    if "REPACK" not in features or not is_matrix:
        return False
    rows = [
        table[tensor.type.name]
        for feature, table in _REPACKED.items()
        if feature in features and tensor.type.name in table
    ]
    return any(tensor.shape[1] % multiple == 0 for multiple in rows)
