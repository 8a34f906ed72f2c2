"""The sizes of a context as llama.cpp derives them from what is asked for (src/llama-context.cpp)."""

from typing import NamedTuple

from llmrun.gguf.types import TENSOR_TYPES, TensorType

# The cache types that llama.cpp offers, as --kv-type spells them.
KV_TYPES: dict[str, TensorType] = {
    type.name.lower(): type
    for type in TENSOR_TYPES.values()
    if type.name in ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL")
}
PADDING = 256  # llama.cpp pads every context to it


def pad(n: int, to: int = PADDING) -> int:
    """`n` rounded up to a multiple of `to`."""
    return -(-n // to) * to


class ContextSizes(NamedTuple):
    """What decides a context's memory. `n_ctx` cells are shared by `n_seq_max` sequences; `kv_type` is (K, V);
    `n_outputs` rows of logits are wanted at most from one decode. Tokens throughout."""

    n_ctx: int
    n_batch: int = 512
    n_ubatch: int = 512
    n_seq_max: int = 1
    n_outputs: int = 1
    kv_type: tuple[str, str] = ("f16", "f16")
    flash_attn: bool = True

    @property
    def n_tokens(self) -> int:
        """Tokens of the largest pass. Padding comes later: `n_ctx` bounds it as it was given."""
        return max(1, min(self.n_ctx, self.n_batch, self.n_ubatch))

    @property
    def cells(self) -> int:
        """Cells of a layer that sees the whole context."""
        return pad(self.n_ctx)

    def window_cells(self, n_swa: int) -> int:
        """Cells of a layer that sees the last `n_swa` tokens, with swa_full off (llama-kv-cache-iswa.cpp)."""
        return pad(min(self.cells, n_swa * self.n_seq_max + self.n_tokens))
