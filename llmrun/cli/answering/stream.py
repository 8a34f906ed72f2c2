"""Drives the engine for one request, handing out text as it comes."""

from collections.abc import Callable
from typing import NamedTuple

from llmrun.cli.terminal.interrupts import on_interrupt
from llmrun.engine.engine import Engine
from llmrun.engine.request import Finished, Logprob, Prefilling, Request, Token
from llmrun.engine.stats import measure
from llmrun.report import Report


class Streamed(NamedTuple):
    """A finished request with its whole text."""

    finished: Finished
    text: str
    logprobs: tuple[Logprob, ...]


def stream(engine: Engine, request: Request, on_text: Callable[[str], None], report: Report) -> Streamed:
    """Run one request to its end; Ctrl-C ends it early with what was generated. `on_text` gets each piece."""
    parts: list[str] = []
    logprobs: list[Logprob] = []

    def give(text: str) -> None:
        if text:
            parts.append(text)
            on_text(text)

    with on_interrupt(engine.interrupt):
        engine.submit(request)
        while True:
            for event in engine.step():
                if isinstance(event, Token):
                    give(event.text)
                    if event.logprob is not None:
                        logprobs.append(event.logprob)
                elif isinstance(event, Prefilling):
                    report.progress("prefill", event.done, event.total, "tok")
                elif isinstance(event, Finished):
                    report.progress("prefill", 1, 1, "tok")
                    give(event.text)
                    return Streamed(event, "".join(parts), tuple(logprobs))


def stats_line(finished: Finished, load_s: float, n_ctx: int, where: str) -> str:
    """The one line of numbers after an answer."""
    speed = measure(finished)
    processed = finished.prompt_tokens - finished.cached_tokens
    parts = []
    if speed.ttft_s is not None:
        parts.append(f"ttft {_ms(speed.ttft_s)}")
    cached = f" (cached {finished.cached_tokens})" if finished.cached_tokens else ""
    parts.append(f"prefill {processed} tok{_rate(speed.prefill_tps)}{cached}")
    decode = f"decode {len(finished.tokens)} tok{_rate(speed.decode_tps)}"
    if speed.itl_p50_s is not None and speed.itl_p95_s is not None and speed.itl_p99_s is not None:
        p50, p95, p99 = (1000 * value for value in (speed.itl_p50_s, speed.itl_p95_s, speed.itl_p99_s))
        decode += f" (p50 {p50:.1f} p95 {p95:.1f} p99 {p99:.1f} ms)"
    parts.append(decode)
    parts.append(f"load {load_s:.2f} s")
    parts.append(f"ctx {finished.prompt_tokens + len(finished.tokens)}/{n_ctx}")
    parts.append(where)
    return " | ".join(parts)


def turn_line(finished: Finished, n_ctx: int) -> str:
    """The shorter line after a turn of a conversation."""
    speed = measure(finished)
    parts = [f"ttft {_ms(speed.ttft_s)}"] if speed.ttft_s is not None else []
    parts.append(f"{len(finished.tokens)} tok{_rate(speed.decode_tps)}")
    parts.append(f"prompt {finished.prompt_tokens - finished.cached_tokens} tok, cached {finished.cached_tokens}")
    parts.append(f"ctx {finished.prompt_tokens + len(finished.tokens)}/{n_ctx}")
    return " | ".join(parts)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _rate(tps: float | None) -> str:
    return f" {tps:.0f} tok/s" if tps is not None and tps >= 10 else f" {tps:.2g} tok/s" if tps else ""
