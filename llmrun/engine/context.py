"""Owner of one llama_context: the KV cache, and decoding batches into it. Knows nothing of requests."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from llmrun.engine import capi
from llmrun.engine.batch import Batch
from llmrun.engine.model import Model
from llmrun.errors import EngineError

FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}  # enum llama_flash_attn_type
ROPE_SCALING = {"model": -1, "none": 0, "linear": 1, "yarn": 2}  # enum llama_rope_scaling_type
# The cache types llama.cpp offers, by their enum ggml_type.
KV_TYPES = {
    "f32": 0,
    "f16": 1,
    "bf16": 30,
    "q8_0": 8,
    "q5_1": 7,
    "q5_0": 6,
    "q4_1": 3,
    "q4_0": 2,
    "iq4_nl": 20,
}
ABORTED, NO_CELLS = 2, 1  # llama_decode's positive results


class ContextSettings(NamedTuple):
    """Sizes in tokens. `n_ctx` cells are shared by up to `n_seq_max` sequences; `kv_type` is (K, V)."""

    n_ctx: int
    n_batch: int = 512
    n_ubatch: int = 512
    n_seq_max: int = 1
    n_threads: int = 1
    kv_type: tuple[str, str] = ("f16", "f16")
    flash_attn: str = "auto"
    kv_on_cpu: bool = False
    rope_scaling: str = "model"
    rope_scale: float = 0.0  # context grows by this factor; 0: as the model says
    kv_unified: bool = True  # False: each sequence has n_ctx / n_seq_max cells of its own
    n_outputs: int = 0  # most logits rows wanted from one decode; 0: one for each sequence


class Context:
    """A KV cache of `n_ctx` cells over a model, and what was last computed in it."""

    def __init__(
        self, model: Model, settings: ContextSettings, watch: Callable[[int, bool], bool] | None = None
    ) -> None:
        """`watch(tensor, ask)` is shown each node of the graph by its ggml_tensor address: with `ask`, whether it
        wants the node's result; then again, without, once that is computed. False then stops the decode."""
        self._lib = capi.lib()
        self.model = model
        self.settings = settings
        params = _params(self._lib, settings)
        if watch is not None:
            self._on_node = self._lib.ggml_backend_sched_eval_callback(lambda node, ask, _data: watch(node, ask))
            params.cb_eval = self._on_node
        self._stop: Callable[[], bool] | None = None
        self._on_abort = self._lib.ggml_abort_callback(self._aborted)
        self._no_abort = self._lib.ggml_abort_callback()  # a null pointer
        capi.log.lines.clear()
        self.pointer = self._lib.llama_init_from_model(model.pointer, params)
        capi.raise_pending()
        if not self.pointer:
            reason = capi.log.last_error("most often there is too little memory for it")
            raise EngineError(
                f"no context of {settings.n_ctx} tokens: {reason}",
                "try a smaller -c, or --kv-type q8_0",
            )
        self.n_ctx = int(self._lib.llama_n_ctx(self.pointer))
        self._memory = self._lib.llama_get_memory(self.pointer)

    def decode(self, batch: Batch, stop: Callable[[], bool] | None = None) -> int:
        """Process the batch. Returns 0, ABORTED when `stop` said so, or NO_CELLS when the cache is full.

        `stop` is asked some hundred times a pass: give it for prefill only, it costs 2 % of a decode.
        Raises EngineError for anything else that fails."""
        if stop is not self._stop:
            self._stop = stop
            callback = self._no_abort if stop is None else self._on_abort
            self._lib.llama_set_abort_callback(self.pointer, callback, None)
        status = int(self._lib.llama_decode(self.pointer, batch.raw))
        capi.raise_pending()
        if status < 0:
            raise EngineError(f"llama.cpp could not decode: {capi.log.last_error(f'status {status}')}")
        return status

    def _aborted(self, _user_data: Any) -> bool:
        return self._stop is not None and self._stop()

    def logits(self, index: int) -> Any:
        """ctypes float pointer to the n_vocab logits of batch index `index`, valid until the next decode."""
        return self._lib.llama_get_logits_ith(self.pointer, index)

    def all_logits(self) -> Any:
        """ctypes float pointer to the logits of all tokens of the last batch that asked for them, row by row."""
        return self._lib.llama_get_logits(self.pointer)

    def remove(self, seq_id: int, start: int, end: int = -1) -> bool:
        """Forget positions [start, end) of a sequence (-1: to its end). False where the cache cannot."""
        return bool(self._lib.llama_memory_seq_rm(self._memory, seq_id, start, end))

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Let `target` share the cells of `source` for positions [start, end)."""
        self._lib.llama_memory_seq_cp(self._memory, source, target, start, end)

    def shift(self, seq_id: int, start: int, end: int, by: int) -> None:
        """Move positions [start, end) of a sequence by `by` (needs `can_shift`)."""
        self._lib.llama_memory_seq_add(self._memory, seq_id, start, end, by)

    @property
    def can_shift(self) -> bool:
        return bool(self._lib.llama_memory_can_shift(self._memory))

    def first_position(self, seq_id: int) -> int:
        """Smallest position the cache still holds of a sequence, -1 when it holds none."""
        return int(self._lib.llama_memory_seq_pos_min(self._memory, seq_id))

    def synchronize(self) -> None:
        """Wait for what a device is still computing: `decode` only queues it there."""
        self._lib.llama_synchronize(self.pointer)

    def clear(self) -> None:
        self._lib.llama_memory_clear(self._memory, True)

    def save(self, seq_id: int, path: Path, tokens: list[int]) -> int:
        """Write a sequence's state and its tokens to a file. Returns the bytes written, 0 on failure."""
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        name = os.fsencode(path)
        return int(self._lib.llama_state_seq_save_file(self.pointer, name, seq_id, ids, len(tokens)))

    def restore(self, seq_id: int, path: Path, n_tokens_max: int) -> list[int]:
        """Read a sequence's state back. Returns its tokens, none when the file does not fit this context."""
        ids = (ctypes.c_int32 * n_tokens_max)()
        n = ctypes.c_size_t()
        name = os.fsencode(path)
        done = self._lib.llama_state_seq_load_file(self.pointer, name, seq_id, ids, n_tokens_max, n)
        return list(ids[: n.value]) if done else []

    def close(self) -> None:
        if self.pointer:
            self._lib.llama_free(self.pointer)
            self.pointer = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _params(lib: Any, settings: ContextSettings) -> Any:
    params = lib.llama_context_default_params()
    params.n_ctx = settings.n_ctx
    params.n_batch = settings.n_batch
    params.n_ubatch = min(settings.n_ubatch, settings.n_batch)
    params.n_seq_max = settings.n_seq_max
    # By default llama.cpp reserves compute memory for the logits of a whole ubatch: 512 MiB with Gemma's vocabulary.
    params.n_outputs_max = settings.n_outputs or settings.n_seq_max
    params.n_threads = params.n_threads_batch = settings.n_threads
    params.type_k, params.type_v = (KV_TYPES[name] for name in settings.kv_type)
    params.flash_attn_type = FLASH_ATTENTION[settings.flash_attn]
    params.offload_kqv = not settings.kv_on_cpu
    params.rope_scaling_type = ROPE_SCALING[settings.rope_scaling]
    params.rope_freq_scale = 1 / settings.rope_scale if settings.rope_scale else 0.0
    params.swa_full = False  # as llama.cpp's own programs do: a window's cells, not the whole context's
    params.kv_unified = settings.kv_unified
    params.no_perf = True
    return params
