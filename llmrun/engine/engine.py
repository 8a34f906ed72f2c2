"""The loop that serves everything: submit requests, step, read events. Knows nothing of chat or text prompts."""

import time
from dataclasses import dataclass

from llmrun.engine.batch import Batch
from llmrun.engine.context import ABORTED, NO_CELLS, Context
from llmrun.engine.logprobs import token_logprob
from llmrun.engine.model import Model
from llmrun.engine.prefix import Resident, Reuse, choose
from llmrun.engine.request import Event, Finished, FinishReason, Prefilling, Request, Started, Timings, Token
from llmrun.engine.sampling import Sampler
from llmrun.engine.scheduler import Chunk, Scheduler, Sequence
from llmrun.engine.text import TextStream
from llmrun.errors import LlmrunError


@dataclass
class _Run:
    """The parts of a running request that the scheduler does not need."""

    sampler: Sampler
    text: TextStream
    timings: Timings


class Engine:
    """Runs requests over one context, several at once, and keeps finished prompts resident for reuse.

    Everything happens in `step`, on the caller's thread. `n_ctx_seq` bounds one sequence (default: the context)."""

    def __init__(self, context: Context, *, n_ctx_seq: int | None = None) -> None:
        self.context = context
        self.model: Model = context.model
        settings = context.settings
        self.n_ctx_seq = min(n_ctx_seq or context.n_ctx, context.n_ctx)
        self.scheduler = Scheduler(context.n_ctx, settings.n_batch, settings.n_seq_max)
        self._batch = Batch(settings.n_batch)
        self._runs: dict[int, _Run] = {}
        self._residents = [Resident(slot, ()) for slot in range(settings.n_seq_max)]
        self._ended: list[Event] = []  # events of requests that ended outside a step
        self._next_id = 0
        self._clock = 0
        self._stop = False

    @property
    def idle(self) -> bool:
        """Nothing to step for."""
        return self.scheduler.idle and not self._ended

    def submit(self, request: Request) -> int:
        """Queue a request and return its id. One that cannot run ends alone, with a Finished of reason error."""
        self._next_id += 1
        n_prompt = len(request.tokens)
        n_new = self.n_ctx_seq if request.max_tokens is None else request.max_tokens
        limit = min(self.n_ctx_seq, n_prompt + n_new)
        sequence = Sequence(self._next_id, request, list(request.tokens), limit)
        timings = Timings(time.perf_counter())
        try:
            self._check(request)
            sampler = Sampler(request.sampling, self.model.vocab, request.answered)
        except LlmrunError as error:
            self._ended.append(_failure(sequence, timings, error.message, error.hint))
            return sequence.request_id
        self._runs[sequence.request_id] = _Run(sampler, TextStream(request.stop), timings)
        self.scheduler.add(sequence)
        return sequence.request_id

    def _check(self, request: Request) -> None:
        if not request.tokens:
            raise LlmrunError("the prompt is empty")
        if len(request.tokens) >= self.n_ctx_seq:
            raise LlmrunError(
                f"the prompt has {len(request.tokens)} tokens, the context holds {self.n_ctx_seq} with the answer",
                f"-c {-(-(len(request.tokens) + 256) // 256) * 256} or more makes room for it",
            )

    def resident(self, slot: int = 0) -> list[int]:
        """The tokens whose KV cells an idle slot holds, for saving its state."""
        return list(self._residents[slot].tokens)

    def adopt(self, tokens: list[int], slot: int = 0) -> None:
        """The slot's KV cells were filled from outside and hold `tokens`; the engine must be idle."""
        self._residents[slot] = Resident(slot, tuple(tokens))

    def forget_span(self, start: int, end: int, slot: int = 0) -> bool:
        """Take the tokens [start, end) out of an idle slot and move the later cells up, instead of computing
        them again. The result is near, not equal, to a new computation: the later cells have seen what is gone.
        False where the architecture's cells cannot move, or the cells are not there."""
        resident = self._residents[slot]
        first = self.context.first_position(slot)
        if not (self.context.can_shift and first == 0 and 0 < start < end <= len(resident.tokens)):
            return False
        if not self.context.remove(slot, start, end):
            return False
        self.context.shift(slot, end, -1, start - end)
        self._residents[slot] = Resident(slot, [*resident.tokens[:start], *resident.tokens[end:]])
        return True

    def interrupt(self) -> None:
        """Stop as soon as possible: safe to call from a signal handler or another thread."""
        self._stop = True

    def cancel(self, request_id: int) -> None:
        """End one request at the next step, keeping what it has generated."""
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            if sequence.request_id == request_id:
                self._ended.append(self._finish(sequence, "interrupted"))

    def step(self) -> list[Event]:
        """Advance every running request by one decode, and say what happened."""
        events, self._ended = self._ended, []
        if self._stop:
            return events + self._end_all()
        self._admit(events)
        chunks = self.scheduler.chunks()
        if not chunks:
            return events
        indices = self._fill(chunks)
        prefill = any(chunk.sequence.in_prefill for chunk in chunks)
        status = self.context.decode(self._batch, self._asked_to_stop if prefill else None)
        if status == ABORTED:
            for chunk in chunks:
                self.context.remove(chunk.sequence.slot, chunk.sequence.n_kv)
            return events + self._end_all()
        if status == NO_CELLS:
            return events + self._make_room()
        for chunk, index in zip(chunks, indices, strict=True):
            self._advance(chunk, index, events)
        return events

    def _asked_to_stop(self) -> bool:
        return self._stop

    def _end_all(self) -> list[Event]:
        self._stop = False
        everyone = [*self.scheduler.running, *self.scheduler.waiting]
        return [self._finish(sequence, "interrupted") for sequence in everyone]

    def _admit(self, events: list[Event]) -> None:
        while (sequence := self.scheduler.next_admissible()) is not None:
            self._residents = [self._refresh(resident) for resident in self._residents]
            reuse = choose(sequence.tokens, self._residents, self.model.n_swa, self.model.is_recurrent)
            sequence.n_kv = sequence.n_cached = self._take(reuse)
            sequence.slot = reuse.slot
            self._clock += 1
            self._residents[reuse.slot] = Resident(reuse.slot, (), busy=True, last_used=self._clock)
            self._evict(keep=reuse.slot)
            self._runs[sequence.request_id].timings.started_at = time.perf_counter()
            events.append(Started(sequence.request_id, sequence.n_cached))

    def _refresh(self, resident: Resident) -> Resident:
        tokens = resident.tokens
        for sequence in self.scheduler.running:
            if sequence.slot == resident.slot:
                tokens = sequence.tokens[: sequence.n_kv]
        first = max(0, self.context.first_position(resident.slot))
        return Resident(resident.slot, tokens, first, resident.busy, resident.last_used)

    def _take(self, reuse: Reuse) -> int:
        """Put the reusable cells into the slot; returns how many tokens are really there."""
        if reuse.source != reuse.slot:
            self.context.remove(reuse.slot, 0)
            self.context.copy(reuse.source, reuse.slot, 0, reuse.n_tokens)
            return reuse.n_tokens
        if self.context.remove(reuse.slot, reuse.n_tokens):
            return reuse.n_tokens
        self.context.remove(reuse.slot, 0)
        return 0

    def _evict(self, keep: int) -> None:
        """Free the cells of idle residents, least recently used first, until every promise can be kept."""
        idle = sorted(
            (r for r in self._residents if not r.busy and r.tokens and r.slot != keep),
            key=lambda r: r.last_used,
        )
        held = sum(len(resident.tokens) for resident in idle)
        for resident in idle:
            if self.scheduler.reserved + held <= self.context.n_ctx:
                break
            self._forget(resident)
            held -= len(resident.tokens)

    def _forget(self, resident: Resident) -> None:
        self.context.remove(resident.slot, 0)
        self._residents[resident.slot] = Resident(resident.slot, ())

    def _make_room(self) -> list[Event]:
        idle = [resident for resident in self._residents if not resident.busy and resident.tokens]
        for resident in idle:
            self._forget(resident)
        if idle:
            return []
        return [self._finish(self.scheduler.running[-1], "error", "the KV cache is full", "try a larger -c")]

    def _fill(self, chunks: list[Chunk]) -> list[int]:
        self._batch.clear()
        indices = []
        for chunk in chunks:
            sequence = chunk.sequence
            tokens = sequence.tokens[sequence.n_kv : sequence.n_kv + chunk.n_tokens]
            indices.append(self._batch.add(tokens, sequence.n_kv, sequence.slot, last_logits=chunk.last))
        return indices

    def _advance(self, chunk: Chunk, index: int, events: list[Event]) -> None:
        sequence = chunk.sequence
        prefilling = sequence.in_prefill
        sequence.n_kv += chunk.n_tokens
        run = self._runs[sequence.request_id]
        if prefilling:
            events.append(Prefilling(sequence.request_id, sequence.n_kv, sequence.n_prompt))
            run.timings.prefilled_at = time.perf_counter()
        if chunk.last:
            self._sample(sequence, run, index, events)

    def _sample(self, sequence: Sequence, run: _Run, index: int, events: list[Event]) -> None:
        request, vocab = sequence.request, self.model.vocab
        if request.max_tokens == 0:
            events.append(self._finish(sequence, "length"))
            return
        try:
            token = run.sampler.sample(self.context, index)
        except LlmrunError as error:
            events.append(self._finish(sequence, "error", error.message, error.hint))
            return
        if vocab.is_eog(token):
            events.append(self._finish(sequence, "stop"))
            return
        run.timings.token_at.append(time.perf_counter())
        logprob = None
        if request.logprobs:
            logits = self.context.logits(index)
            logprob = token_logprob(logits, vocab.n_tokens, token, request.logprobs)
        sequence.tokens.append(token)
        text = run.text.feed(vocab.piece(token, special=token in request.visible))
        events.append(Token(sequence.request_id, token, text, logprob))
        reason = self._reason_to_end(sequence, run)
        if reason is not None:
            events.append(self._finish(sequence, reason))

    def _reason_to_end(self, sequence: Sequence, run: _Run) -> FinishReason | None:
        if run.text.stopped:
            return "stop"
        if sequence.n_generated == sequence.request.max_tokens:
            return "length"
        return "context" if len(sequence.tokens) >= self.n_ctx_seq else None

    def _finish(self, sequence: Sequence, reason: FinishReason, error: str = "", hint: str = "") -> Finished:
        run = self._runs.pop(sequence.request_id)
        run.sampler.close()
        run.timings.ended_at = time.perf_counter()
        self.scheduler.remove(sequence)
        if sequence.slot >= 0:
            self._clock += 1
            held = sequence.tokens[: sequence.n_kv]
            self._residents[sequence.slot] = Resident(sequence.slot, held, last_used=self._clock)
        return Finished(
            sequence.request_id,
            reason,
            run.text.finish(),
            tuple(sequence.tokens[sequence.n_prompt :]),
            sequence.n_prompt,
            sequence.n_cached,
            run.timings,
            error,
            hint,
        )

    def close(self) -> None:
        """Free the batch and samplers; the context and model belong to the caller."""
        for run in self._runs.values():
            run.sampler.close()
        self._runs.clear()
        self._batch.close()


def _failure(sequence: Sequence, timings: Timings, error: str, hint: str) -> Finished:
    timings.ended_at = time.perf_counter()
    return Finished(sequence.request_id, "error", "", (), sequence.n_prompt, 0, timings, error, hint)
