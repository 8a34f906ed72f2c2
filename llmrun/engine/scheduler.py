"""Who runs in the next step, and how many of their tokens. Pure policy: it never sees the library.

Continuous batching: each step mixes the next token of every running sequence with chunks of waiting prompts, under a
budget of `n_batch` tokens. A sequence is admitted when the KV cells it may come to need are free, so that none fails
half way.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from llmrun.engine.request import Request


@dataclass
class Sequence:
    """A request on its way: its tokens so far, of which the first `n_kv` are in the KV cache."""

    request_id: int
    request: Request
    tokens: list[int]
    limit: int  # the most tokens it may grow to
    slot: int = -1
    n_kv: int = 0
    n_cached: int = 0
    n_prompt: int = field(init=False)

    def __post_init__(self) -> None:
        self.n_prompt = len(self.tokens)

    @property
    def n_generated(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def pending(self) -> int:
        """Tokens not yet in the KV cache."""
        return len(self.tokens) - self.n_kv

    @property
    def in_prefill(self) -> bool:
        return self.n_kv < self.n_prompt


class Chunk(NamedTuple):
    """The next `n_tokens` of a sequence to compute; `last` when they reach its end, so that it can be sampled."""

    sequence: Sequence
    n_tokens: int
    last: bool


class Scheduler:
    """Queues and counts. `n_ctx` KV cells are shared by at most `n_seq_max` sequences."""

    def __init__(self, n_ctx: int, n_batch: int, n_seq_max: int) -> None:
        self.n_ctx = n_ctx
        self.n_batch = n_batch
        self.n_seq_max = n_seq_max
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def reserved(self) -> int:
        """KV cells promised to the running sequences."""
        return sum(sequence.limit for sequence in self.running)

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def next_admissible(self) -> Sequence | None:
        """The sequence at the head of the queue, when a slot and its cells are free. First come, first served."""
        if not self.waiting or len(self.running) >= self.n_seq_max:
            return None
        if self.reserved + self.waiting[0].limit > self.n_ctx:
            return None
        sequence = self.waiting.popleft()
        self.running.append(sequence)
        return sequence

    def chunks(self) -> list[Chunk]:
        """What to compute next: one token of every decoding sequence, then prompts in order of arrival."""
        decoding = [sequence for sequence in self.running if not sequence.in_prefill]
        chunks = [Chunk(sequence, 1, True) for sequence in decoding[: self.n_batch]]
        budget = self.n_batch - len(chunks)
        for sequence in self.running:
            if budget and sequence.in_prefill:
                n = min(budget, sequence.pending)
                chunks.append(Chunk(sequence, n, n == sequence.pending))
                budget -= n
        return chunks

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)

    def check_integrity(self) -> None:
        """Raise AssertionError where the counts contradict each other; for tests."""
        slots = [sequence.slot for sequence in self.running]
        assert len(set(slots)) == len(slots) <= self.n_seq_max, slots
        assert self.reserved <= self.n_ctx, (self.reserved, self.n_ctx)
        for sequence in self.running:
            assert 0 <= sequence.n_cached <= sequence.n_kv <= len(sequence.tokens) <= sequence.limit, sequence
            assert sequence.pending == 1 or sequence.in_prefill or sequence.n_generated == 0, sequence
