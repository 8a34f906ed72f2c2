"""Owner of one loaded model and its vocabulary. Knows nothing of contexts or requests."""

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from llmrun.engine import capi, offload
from llmrun.engine.offload import Placed
from llmrun.errors import EngineError, Interrupted, UsageError


class ModelSettings(NamedTuple):
    """How a model is loaded. `gpu_layers` -1 puts every layer on the GPU; they go to `devices` by name (None: all
    there are), `split[i]` of them to `devices[i]` (empty: by their free memory). The routed experts of the first
    `cpu_expert_layers` layers stay on the CPU.
    """

    gpu_layers: int = -1
    mmap: bool = True
    mlock: bool = False
    vocab_only: bool = False
    devices: tuple[str, ...] | None = None
    split: tuple[int, ...] = ()
    cpu_expert_layers: int = 0


class Vocab:
    """Text to token ids and back, exactly as the model's file says."""

    def __init__(self, pointer: int) -> None:
        self._lib = capi.lib()
        self.pointer = pointer
        self.n_tokens = int(self._lib.llama_vocab_n_tokens(pointer))
        self.bos = int(self._lib.llama_vocab_bos(pointer))
        self.eos = int(self._lib.llama_vocab_eos(pointer))
        self.eot = int(self._lib.llama_vocab_eot(pointer))
        self.add_bos = bool(self._lib.llama_vocab_get_add_bos(pointer))
        self._buffer = ctypes.create_string_buffer(256)

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Token ids of `text`. `add_special` adds BOS/EOS where the model asks for them; `parse_special` reads
        the text of control tokens as those tokens. Raises UsageError for text that is not valid Unicode."""
        try:
            raw = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(f"the text is not valid Unicode at character {error.start}") from None
        # A token covers at least one byte, so the text bounds the count (plus BOS, EOS, a leading space).
        capacity = len(raw) + 4
        while True:
            ids = (ctypes.c_int32 * capacity)()
            n = self._lib.llama_tokenize(self.pointer, raw, len(raw), ids, capacity, add_special, parse_special)
            if n >= 0:
                return ids[:n]
            if -n <= capacity:
                raise EngineError(f"llama.cpp could not tokenize {len(raw)} bytes")
            capacity = -n

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes a token stands for; control tokens are empty unless `special`."""
        if not 0 <= token < self.n_tokens:
            raise UsageError(f"token id {token} is outside the vocabulary of {self.n_tokens}")
        n = self._lib.llama_token_to_piece(self.pointer, token, self._buffer, len(self._buffer), 0, special)
        if n < 0:  # longer than the buffer: -n is the size it needs
            self._buffer = ctypes.create_string_buffer(-n)
            n = self._lib.llama_token_to_piece(self.pointer, token, self._buffer, -n, 0, special)
        return self._buffer.raw[:n]

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> bytes:
        """The exact inverse of `tokenize`, as far as the vocabulary keeps all of a text.

        The pieces are joined: llama_detokenize would also drop spaces before punctuation for some vocabularies."""
        text = b"".join(self.piece(token, special=special) for token in tokens)
        return text.removeprefix(b" ") if self._adds_space else text

    @functools.cached_property
    def _adds_space(self) -> bool:
        """Whether the vocabulary puts a space in front of every text, which was not in it."""
        return b"".join(map(self.piece, self.tokenize("a"))) == b" a"

    def text(self, token: int) -> str:
        """The token as the vocabulary spells it, control tokens included; empty for -1 (none)."""
        if token < 0:
            return ""
        return str(self._lib.llama_vocab_get_text(self.pointer, token).decode("utf-8", "replace"))

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation: EOS, end of turn, and their kin."""
        return bool(self._lib.llama_vocab_is_eog(self.pointer, token))

    def is_control(self, token: int) -> bool:
        return bool(self._lib.llama_vocab_is_control(self.pointer, token))

    @functools.cached_property
    def eog_tokens(self) -> tuple[int, ...]:
        """All that end a generation; the first look asks for each token of the vocabulary."""
        is_eog, pointer = self._lib.llama_vocab_is_eog, self.pointer  # looked up once for a whole vocabulary
        return tuple(token for token in range(self.n_tokens) if is_eog(pointer, token))


class Model:
    """A loaded model. Close it (or use `with`) after every context made from it."""

    def __init__(self, pointer: int, path: Path, placed: Placed, kept: Sequence[Any] = ()) -> None:
        self._lib = capi.lib()
        self.pointer = pointer
        self.path = path
        self.placed = placed
        self._kept = kept  # arrays that llama.cpp goes on reading
        self.vocab = Vocab(self._lib.llama_model_get_vocab(pointer))
        self.n_ctx_train = int(self._lib.llama_model_n_ctx_train(pointer))
        self.n_layer = int(self._lib.llama_model_n_layer(pointer))
        self.n_embd = int(self._lib.llama_model_n_embd(pointer))
        self.n_swa = int(self._lib.llama_model_n_swa(pointer))
        self.n_params = int(self._lib.llama_model_n_params(pointer))
        self.size_bytes = int(self._lib.llama_model_size(pointer))
        self.has_encoder = bool(self._lib.llama_model_has_encoder(pointer))
        self.has_decoder = bool(self._lib.llama_model_has_decoder(pointer))
        self.is_recurrent = bool(
            self._lib.llama_model_is_recurrent(pointer) or self._lib.llama_model_is_hybrid(pointer)
        )

    @classmethod
    def load(
        cls,
        path: Path,
        settings: ModelSettings,
        on_progress: Callable[[float], bool] | None = None,
        more_parts: Sequence[Path] = (),
        *,
        unheard: bool = False,
    ) -> Self:
        """Load the weights. `on_progress` gets 0.0 to 1.0 and stops the load by returning False. `more_parts` are
        the further files of a split model, in order, whatever they are called. `unheard`: without llama.cpp's log,
        from which `placed` is read.

        The GIL is free meanwhile, so callers overlap other work. Raises EngineError with llama.cpp's reason,
        Interrupted when stopped."""
        lib = capi.lib()
        params = lib.llama_model_default_params()
        kept = offload.set_params(
            params, settings.gpu_layers, settings.devices, settings.split, settings.cpu_expert_layers
        )
        params.load_mode = _load_mode(lib, settings)
        params.vocab_only = settings.vocab_only
        stopped = False

        def progress(fraction: float, _user_data: Any) -> bool:
            nonlocal stopped
            stopped = on_progress is not None and not on_progress(fraction)
            return not stopped

        callback = lib.llama_progress_callback(progress)
        if on_progress is not None:
            params.progress_callback = callback
        capi.log.lines.clear()
        names = [os.fsencode(part) for part in (path, *more_parts)]
        pointer = 0
        if unheard:
            with capi.unheard():
                pointer = _load(lib, names, params)
        if not pointer and not stopped:  # what fails unheard is loaded again for the reason
            pointer = _load(lib, names, params)
        if stopped:
            raise Interrupted("interrupted while loading")
        if not pointer:
            reason = capi.log.last_error("llama.cpp gave no reason")
            raise EngineError(f"{path.name} does not load: {reason}", f"llmrun show {path}")
        return cls(pointer, path, offload.placed(text for _, text in capi.log.lines), kept)

    def close(self) -> None:
        if self.pointer:
            self._lib.llama_model_free(self.pointer)
            self.pointer = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _load(lib: Any, names: Sequence[bytes], params: Any) -> int:
    """The model's address, or 0."""
    if len(names) == 1:
        return lib.llama_model_load_from_file(names[0], params) or 0
    array = (ctypes.c_char_p * len(names))(*names)
    return lib.llama_model_load_from_splits(array, len(names), params) or 0


def _load_mode(lib: Any, settings: ModelSettings) -> int:
    modes = {
        (True, False): lib.LLAMA_LOAD_MODE_MMAP,
        (True, True): lib.LLAMA_LOAD_MODE_MMAP_MLOCK,
        (False, True): lib.LLAMA_LOAD_MODE_MLOCK,
        (False, False): lib.LLAMA_LOAD_MODE_NONE,
    }
    return int(modes[settings.mmap, settings.mlock])
