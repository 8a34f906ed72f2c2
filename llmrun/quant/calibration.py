"""Text that a model writes for its own calibration: no data set is needed, and the same seed gives the same text."""

import random
from collections.abc import Callable

from llmrun.engine.context import Context, ContextSettings
from llmrun.engine.engine import Engine
from llmrun.engine.model import Model
from llmrun.engine.params import SamplingParams
from llmrun.engine.request import Finished, Request
from llmrun.errors import EngineError, Interrupted
from llmrun.report import Report

CALIBRATION_SEED, REPORT_SEED = 1, 2
N_TOKENS = 16 * 512
_N_TOGETHER = 8  # sequences decoded together: several times faster than one after the other
_N_EACH = 256
_MAX_ROUNDS = 64


def start_token(model: Model) -> int:
    """What a document begins with: BOS where the vocabulary adds one, else the separator between documents."""
    vocab = model.vocab
    if vocab.add_bos and vocab.bos >= 0:
        return vocab.bos
    for token in (vocab.eos, vocab.bos, vocab.eot):
        if token >= 0 and vocab.text(token) in ("<|endoftext|>", "</s>", "<|end_of_text|>"):
            return token
    return next((token for token in (vocab.bos, vocab.eos) if token >= 0), 0)


def write_text(
    model: Model,
    *,
    report: Report,
    n_threads: int,
    seed: int,
    n_tokens: int = N_TOKENS,
    stop: Callable[[], bool] | None = None,
) -> str:
    """Documents sampled from the model, about `n_tokens` long together. Raises Interrupted when stopped."""
    rng = random.Random(seed)
    settings = ContextSettings(_N_TOGETHER * (_N_EACH + 8), n_seq_max=_N_TOGETHER, n_threads=n_threads)
    engine = Engine(Context(model, settings))
    documents: list[tuple[int, ...]] = []
    try:
        for _ in range(_MAX_ROUNDS):
            n_written = sum(map(len, documents))
            if n_written >= n_tokens:
                break
            report.progress("writing a text", n_written, n_tokens, "tokens")
            documents += _write_round(engine, start_token(model), rng, stop)
    finally:
        engine.context.close()
        report.progress("writing a text", n_tokens, n_tokens, "tokens")
    return "\n\n".join(model.vocab.detokenize(tokens).decode("utf-8", "replace") for tokens in documents)


def _write_round(
    engine: Engine, first: int, rng: random.Random, stop: Callable[[], bool] | None
) -> list[tuple[int, ...]]:
    """As many documents as are written together, in the order they were begun."""
    done: dict[int, tuple[int, ...]] = {}
    for _ in range(_N_TOGETHER):
        sampling = SamplingParams(temp=1.0, top_k=200, top_p=1.0, min_p=0.02, seed=rng.randrange(1 << 31))
        done[engine.submit(Request((first,), sampling, _N_EACH))] = ()
    while not engine.idle:
        if stop is not None and stop():
            raise Interrupted("interrupted")
        for event in engine.step():
            if isinstance(event, Finished):
                if event.reason == "error":
                    raise EngineError(f"the model could not write a text: {event.error}")
                done[event.request_id] = event.tokens
    return list(done.values())
