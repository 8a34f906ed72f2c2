"""Owner of one llama_batch: the tokens of several sequences that one decode processes together."""

import ctypes
from collections.abc import Sequence
from typing import Any

from llmrun.engine import capi


class Batch:
    """Up to `n_tokens_max` tokens, each with a position, one sequence, and whether its logits are wanted."""

    def __init__(self, n_tokens_max: int) -> None:
        self._lib = capi.lib()
        self.n_tokens_max = n_tokens_max
        self.raw: Any = self._lib.llama_batch_init(n_tokens_max, 0, 1)
        # Field access through a ctypes structure makes a new pointer object each time: keep them.
        self._token, self._pos = self.raw.token, self.raw.pos
        self._seq_id, self._logits = self.raw.seq_id, self.raw.logits
        for i in range(n_tokens_max):
            self.raw.n_seq_id[i] = 1

    def clear(self) -> None:
        self.raw.n_tokens = 0

    def add(self, tokens: Sequence[int], pos: int, seq_id: int, *, last_logits: bool) -> int:
        """Append `tokens` at positions pos, pos+1, ... Returns the batch index of the last one, at which its
        logits are found after the decode when `last_logits`."""
        start = self.raw.n_tokens
        n = len(tokens)
        assert n and start + n <= self.n_tokens_max
        if n == 1:
            self._token[start], self._pos[start] = tokens[0], pos
            self._seq_id[start][0], self._logits[start] = seq_id, last_logits
        else:
            span = ctypes.c_int32 * n
            self._copy(self._token, start, span(*tokens))
            self._copy(self._pos, start, span(*range(pos, pos + n)))
            for i in range(start, start + n):
                self._seq_id[i][0] = seq_id
                self._logits[i] = 0
            self._logits[start + n - 1] = last_logits
        self.raw.n_tokens = start + n
        return int(start + n - 1)

    def want(self, start: int, end: int) -> None:
        """Ask for the logits of the tokens at batch indices [start, end)."""
        for i in range(start, end):
            self._logits[i] = 1

    @staticmethod
    def _copy(field: Any, start: int, values: Any) -> None:
        address = ctypes.addressof(field.contents) + start * ctypes.sizeof(ctypes.c_int32)
        ctypes.memmove(address, values, ctypes.sizeof(values))

    def close(self) -> None:
        if self.n_tokens_max:
            self._lib.llama_batch_free(self.raw)
            self.n_tokens_max = 0
