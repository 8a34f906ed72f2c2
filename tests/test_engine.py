"""The engine on tiny models: batching, shared prefixes, failures, interrupts, against plain one-by-one decoding."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrun.engine.context import Context, ContextSettings
from llmrun.engine.engine import Engine
from llmrun.engine.model import Model, ModelSettings
from llmrun.engine.params import SamplingParams
from llmrun.engine.request import Event, Finished, Prefilling, Request, Started, Token
from tests.tiny import EOS, tiny_gguf

GREEDY = SamplingParams(temp=0, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Iterator[Model]:
    with Model.load(tiny_model, ModelSettings()) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tiny_gguf(tmp_path_factory.mktemp("swa") / "gemma3.gguf", arch="gemma3", n_layer=6, sliding_window=16)
    with Model.load(path, ModelSettings()) as loaded:
        yield loaded


def engine_of(model: Model, n_ctx: int = 512, n_seq_max: int = 1, n_batch: int = 64, **more: object) -> Engine:
    settings = ContextSettings(n_ctx, n_batch=n_batch, n_seq_max=n_seq_max, kv_type=("f32", "f32"), **more)  # type: ignore[arg-type]
    return Engine(Context(model, settings))


def run_all(engine: Engine) -> dict[int, Finished]:
    done = {}
    for _ in range(5000):
        if engine.idle:
            return done
        for event in engine.step():
            if isinstance(event, Finished):
                done[event.request_id] = event
        engine.scheduler.check_integrity()
    raise AssertionError("the engine did not come to an end")


def alone(model: Model, request: Request) -> Finished:
    engine = engine_of(model)
    engine.submit(request)
    return next(iter(run_all(engine).values()))


def prompt(seed: int, n: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(256) for _ in range(n))


def test_events_come_in_order_and_agree_with_each_other(model: Model) -> None:
    engine = engine_of(model, n_batch=16)
    engine.submit(Request(prompt(1, 40), GREEDY, max_tokens=5))
    events: list[Event] = []
    while not engine.idle:
        events += engine.step()
    kinds = [type(event) for event in events]
    assert kinds == [Started, Prefilling, Prefilling, Prefilling, *[Token] * 5, Finished]
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.reason == "length"
    assert last.tokens == tuple(event.token for event in events if isinstance(event, Token))
    assert last.prompt_tokens == 40
    times = [last.timings.submitted_at, last.timings.started_at, last.timings.prefilled_at, *last.timings.token_at]
    assert times == sorted(times)
    assert len(last.timings.token_at) == 5


def test_staggered_requests_together_equal_each_alone(model: Model) -> None:
    requests = [Request(prompt(seed, 5 + 7 * seed), GREEDY, max_tokens=20 + seed) for seed in range(6)]
    engine = engine_of(model, n_ctx=512, n_seq_max=3, n_batch=24)
    done: dict[int, Finished] = {}
    ids = {}
    for request in requests:
        ids[engine.submit(request)] = request
        for event in engine.step() + engine.step():
            if isinstance(event, Finished):
                done[event.request_id] = event
    done |= run_all(engine)
    assert {ids[i]: finished.tokens for i, finished in done.items()} == {
        request: alone(model, request).tokens for request in requests
    }


def test_a_failing_request_ends_alone(model: Model) -> None:
    engine = engine_of(model, n_ctx=256, n_seq_max=4)
    short = [Request(prompt(seed, 8), GREEDY, max_tokens=16) for seed in range(3)]
    long = Request(prompt(9, 500), GREEDY, max_tokens=16)
    bad = Request(prompt(8, 4), SamplingParams(grammar="root ::= ("), max_tokens=4)
    ids = [engine.submit(request) for request in (short[0], long, short[1], bad, short[2], Request(()))]
    done = run_all(engine)
    assert [done[i].reason for i in ids] == ["length", "error", "length", "error", "length", "error"]
    assert "500 tokens" in done[ids[1]].error
    assert [done[ids[i]].tokens for i in (0, 2, 4)] == [alone(model, request).tokens for request in short]


def test_a_finished_prompt_is_reused_and_gives_the_same_answer(model: Model) -> None:
    engine = engine_of(model)
    first = Request(prompt(1, 50), GREEDY, max_tokens=10)
    engine.submit(first)
    (one,) = run_all(engine).values()
    longer = Request((*first.tokens, *one.tokens, *prompt(2, 6)), GREEDY, max_tokens=10)
    engine.submit(longer)
    (two,) = run_all(engine).values()
    assert two.cached_tokens == 59  # all but the last generated token, which was never computed
    assert two.tokens == alone(model, longer).tokens


def test_running_requests_share_a_prefix(model: Model) -> None:
    shared = prompt(3, 60)
    requests = [Request((*shared, seed), GREEDY, max_tokens=12) for seed in range(3)]
    engine = engine_of(model, n_seq_max=3, n_batch=128)
    ids = [engine.submit(requests[0])]
    engine.step()
    ids += [engine.submit(request) for request in requests[1:]]
    done = run_all(engine)
    assert [done[i].cached_tokens for i in ids] == [0, 60, 60]
    assert [done[i].tokens for i in ids] == [alone(model, request).tokens for request in requests]


@pytest.mark.parametrize("cut", [3, 20, 45, 69])
def test_reuse_is_right_where_a_sliding_window_has_moved_on(windowed: Model, cut: int) -> None:
    engine = engine_of(windowed, n_batch=8)
    tokens = prompt(4, 70)
    engine.submit(Request(tokens, GREEDY, max_tokens=8))
    run_all(engine)
    request = Request((*tokens[:cut], *prompt(5, 9)), GREEDY, max_tokens=12)
    engine.submit(request)
    (second,) = run_all(engine).values()
    assert second.tokens == alone(windowed, request).tokens


def test_many_requests_over_few_cells_all_finish_right(model: Model) -> None:
    rng = random.Random(0)
    engine = engine_of(model, n_ctx=256, n_seq_max=4, n_batch=32)
    pool = [prompt(seed, 30) for seed in range(3)]
    requests = [
        Request((*rng.choice(pool)[: rng.randint(1, 30)], *prompt(seed, rng.randint(1, 20))), GREEDY, max_tokens=9)
        for seed in range(24)
    ]
    ids = [engine.submit(request) for request in requests]
    done = run_all(engine)
    assert [done[i].tokens for i in ids] == [alone(model, request).tokens for request in requests]


def test_the_end_of_the_context_ends_an_answer(model: Model) -> None:
    engine = engine_of(model, n_ctx=256)
    engine.submit(Request(prompt(1, 200), GREEDY))
    (done,) = run_all(engine).values()
    assert done.reason == "context"
    assert done.prompt_tokens + len(done.tokens) == 256


def test_no_tokens_asked_for_gives_none(model: Model) -> None:
    done = alone(model, Request(prompt(1, 5), GREEDY, max_tokens=0))
    assert (done.reason, done.tokens) == ("length", ())


def test_an_end_token_ends_the_answer_and_is_not_counted(model: Model) -> None:
    bias = SamplingParams(temp=0, logit_bias=((EOS, 1000.0),))
    done = alone(model, Request(prompt(1, 5), bias, max_tokens=5))
    assert (done.reason, done.tokens, done.text) == ("stop", (), "")


def test_interrupt_during_prefill_ends_the_request_and_leaves_the_engine_usable(model: Model) -> None:
    engine = engine_of(model, n_ctx=2048, n_batch=512)
    engine.submit(Request(prompt(1, 1500), GREEDY, max_tokens=5))
    engine.context._stop = None
    asked = 0

    def stop_soon() -> bool:
        nonlocal asked
        asked += 1
        return asked > 20

    engine._asked_to_stop = stop_soon  # type: ignore[method-assign]
    (done,) = run_all(engine).values()
    assert (done.reason, done.tokens) == ("interrupted", ())
    del engine._asked_to_stop
    request = Request(prompt(1, 30), GREEDY, max_tokens=6)
    engine.submit(request)
    (after,) = run_all(engine).values()
    assert after.tokens == alone(model, request).tokens


def test_interrupt_between_tokens_keeps_what_was_generated(model: Model) -> None:
    engine = engine_of(model)
    engine.submit(Request(prompt(1, 5), GREEDY))
    tokens = [event.token for _ in range(6) for event in engine.step() if isinstance(event, Token)]
    engine.interrupt()
    (done,) = run_all(engine).values()
    assert (done.reason, list(done.tokens)) == ("interrupted", tokens)


def test_cancel_ends_one_request_only(model: Model) -> None:
    engine = engine_of(model, n_seq_max=2)
    keep = Request(prompt(2, 5), GREEDY, max_tokens=8)
    first, second = engine.submit(Request(prompt(1, 5), GREEDY)), engine.submit(keep)
    for _ in range(3):
        engine.step()
    engine.cancel(first)
    done = run_all(engine)
    assert done[first].reason == "interrupted"
    assert done[second].tokens == alone(model, keep).tokens


def test_stop_strings_end_an_answer_before_themselves(model: Model) -> None:
    full = alone(model, Request(prompt(6, 5), GREEDY, max_tokens=30))
    text = b"".join(model.vocab.piece(token) for token in full.tokens).decode("utf-8", "ignore")
    stop = text[len(text) // 2 :][:3]
    done = alone(model, Request(prompt(6, 5), GREEDY, max_tokens=30, stop=(stop,)))
    assert done.reason == "stop"
    shown = b"".join(model.vocab.piece(token) for token in done.tokens).decode("utf-8", "ignore")
    assert stop in shown
    assert len(done.tokens) < len(full.tokens)


def test_logprobs_are_those_of_the_logits(model: Model) -> None:
    engine = engine_of(model)
    engine.submit(Request(prompt(1, 5), GREEDY, max_tokens=3, logprobs=4))
    events = [event for _ in range(6) for event in engine.step() if isinstance(event, Token)]
    for event in events:
        assert event.logprob is not None
        assert event.logprob.top[0] == (event.token, event.logprob.logprob)  # greedy takes the likeliest
        assert [p for _, p in event.logprob.top] == sorted((p for _, p in event.logprob.top), reverse=True)
        assert len(event.logprob.top) == 4
        assert event.logprob.logprob < 0


@pytest.mark.parametrize("seed", [1, 2])
def test_one_seed_gives_one_answer_and_another_seed_another(model: Model, seed: int) -> None:
    params = SamplingParams(temp=1.5, top_k=0, top_p=1, min_p=0, seed=seed, ignore_eos=True)
    first, again = (alone(model, Request(prompt(1, 5), params, max_tokens=12)).tokens for _ in range(2))
    other = SamplingParams(temp=1.5, top_k=0, top_p=1, min_p=0, seed=seed + 10, ignore_eos=True)
    assert first == again
    assert first != alone(model, Request(prompt(1, 5), other, max_tokens=12)).tokens
