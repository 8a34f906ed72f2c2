"""The result of one request as other programs read it: `run --json`, and each line of a batch.

Times in seconds, speeds in tokens per second, sizes in bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llmrun import __version__
from llmrun.engine import capi
from llmrun.engine.request import Finished, FinishReason, Logprob
from llmrun.engine.stats import measure
from llmrun.gguf.info import ModelInfo
from llmrun.machine.memory import peak_rss_bytes


@dataclass(frozen=True)
class ModelFacts:
    ref: str
    path: str
    arch: str
    quant: str
    n_params: int
    size_bytes: int


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class AnswerTimings:
    load_s: float
    ttft_s: float | None
    prefill_s: float
    prefill_tps: float | None
    decode_s: float
    decode_tps: float | None
    itl_p50_s: float | None
    itl_p95_s: float | None
    itl_p99_s: float | None
    total_s: float


@dataclass(frozen=True)
class Build:
    llmrun: str
    llama_cpp_python: str
    llama_cpp: str
    backends: tuple[str, ...]


@dataclass(frozen=True)
class Memory:
    peak_rss_bytes: int


@dataclass(frozen=True)
class TokenChance:
    """A token, its text, and the natural log of its probability."""

    id: int
    token: str
    logprob: float


@dataclass(frozen=True)
class TokenLogprobs(TokenChance):
    """A generated token, with the likeliest that could have stood there."""

    top: tuple[TokenChance, ...]


@dataclass(frozen=True)
class Answer:
    """Optional parts are None where they were not asked for, and are left out of the JSON."""

    text: str
    finish_reason: FinishReason
    model: ModelFacts
    usage: Usage
    timings: AnswerTimings
    settings: dict[str, Any]
    memory: Memory
    build: Build
    notes: tuple[str, ...]
    reasoning: str | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    error: str | None = None


def answer(
    finished: Finished,
    text: str,
    model: ModelFacts,
    settings: dict[str, Any],
    load_s: float,
    notes: tuple[str, ...],
    *,
    reasoning: str | None = None,
    logprobs: tuple[TokenLogprobs, ...] | None = None,
) -> Answer:
    """Gather what is known of a finished request."""
    speed = measure(finished)
    return Answer(
        text=text,
        finish_reason=finished.reason,
        model=model,
        usage=Usage(finished.prompt_tokens, finished.cached_tokens, len(finished.tokens)),
        timings=AnswerTimings(
            load_s=load_s,
            ttft_s=speed.ttft_s,
            prefill_s=speed.prefill_s,
            prefill_tps=speed.prefill_tps,
            decode_s=speed.decode_s,
            decode_tps=speed.decode_tps,
            itl_p50_s=speed.itl_p50_s,
            itl_p95_s=speed.itl_p95_s,
            itl_p99_s=speed.itl_p99_s,
            total_s=speed.total_s,
        ),
        settings=settings,
        memory=Memory(peak_rss_bytes()),
        build=build(),
        notes=notes,
        reasoning=reasoning,
        logprobs=logprobs,
        error=finished.error or None,
    )


def present(result: Answer) -> dict[str, Any]:
    """The answer's fields, without the optional parts that are not there."""
    fields = vars(result)
    return {name: value for name, value in fields.items() if value is not None}


def named_logprobs(logprobs: tuple[Logprob, ...], piece: Callable[..., bytes]) -> tuple[TokenLogprobs, ...]:
    """Log-probabilities with the texts of their tokens."""

    def text(token: int) -> str:
        return piece(token, special=True).decode("utf-8", "replace")

    return tuple(
        TokenLogprobs(
            one.token,
            text(one.token),
            one.logprob,
            tuple(TokenChance(token, text(token), chance) for token, chance in one.top),
        )
        for one in logprobs
    )


def model_facts(info: ModelInfo, ref: str, path: str) -> ModelFacts:
    return ModelFacts(ref, path, info.arch, info.quant, info.n_params, info.size_bytes)


def build() -> Build:
    """The versions at work: numbers and texts are comparable only under the same ones."""
    from importlib import metadata

    return Build(__version__, metadata.version("llama-cpp-python"), capi.version(), capi.backends())
