"""What the engine is asked for, and what it tells while it works. Times are `time.perf_counter()` seconds."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from llmrun.engine.params import SamplingParams

FinishReason = Literal["stop", "length", "context", "interrupted", "error"]


class Request(NamedTuple):
    """One prompt to continue. Without `max_tokens` it runs to an end token or the end of the context.

    `answered` are tokens of the answer that the prompt ends with already (a grammar counts them); `logprobs` asks for
    the log-probabilities of that many likeliest tokens; `visible` are control tokens to give out as text."""

    tokens: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int = 0
    answered: tuple[int, ...] = ()
    visible: frozenset[int] = frozenset()


class Logprob(NamedTuple):
    """A chosen token's natural-log probability before sampling, and the likeliest (token, logprob) beside it."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass
class Timings:
    """When things happened to one request. `token_at` holds one time for each generated token."""

    submitted_at: float
    started_at: float = 0.0
    prefilled_at: float = 0.0
    token_at: list[float] = field(default_factory=list)
    ended_at: float = 0.0


class Started(NamedTuple):
    """The request left the queue; `cached_tokens` of its prompt were already in the KV cache."""

    request_id: int
    cached_tokens: int


class Prefilling(NamedTuple):
    """`done` of the prompt's `total` tokens are in the KV cache."""

    request_id: int
    done: int
    total: int


class Token(NamedTuple):
    """One generated token. `text` is what became certain with it, which may be nothing."""

    request_id: int
    token: int
    text: str
    logprob: Logprob | None = None


class Finished(NamedTuple):
    """The request is over. `text` is what was held back until now; `tokens` all that were generated."""

    request_id: int
    reason: FinishReason
    text: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    timings: Timings
    error: str = ""
    hint: str = ""


Event = Started | Prefilling | Token | Finished
