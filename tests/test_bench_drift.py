"""The drift report: a planted difference is found, none is reported where there is none."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmrun.bench.drift import AGAIN, N_GEN, TEXTS, Drift, compare, run_drift, sentence, variants
from llmrun.bench.grid import Grid, Setting
from llmrun.bench.stop import Stop
from llmrun.bench.subject import Need
from llmrun.bench.trace import Trace, trace
from llmrun.engine.context import Context, ContextSettings
from llmrun.engine.engine import Engine
from llmrun.engine.model import Model, ModelSettings
from llmrun.engine.params import SamplingParams
from llmrun.engine.request import Finished, Request
from llmrun.errors import Interrupted
from llmrun.prepare.subject import OpenSubject
from llmrun.report import Quiet
from tests.cli import llmrun
from tests.tiny import tiny_gguf

BASE = Grid().settings(1)[0]
PROMPTS = [[seed, 40 + seed, 3 * seed, 97] for seed in range(1, 5)]


@pytest.fixture
def context(tiny_model: Path) -> Iterator[Context]:
    settings = ContextSettings(512, n_seq_max=4, kv_type=("f32", "f32"), flash_attn="off")
    with Model.load(tiny_model, ModelSettings()) as model, Context(model, settings) as made:
        yield made


def test_a_trace_is_what_the_engine_answers_greedily(context: Context) -> None:
    found = trace(context, PROMPTS, 12, Stop())
    context.clear()
    engine = Engine(context)
    for prompt, one in zip(PROMPTS, found, strict=True):
        engine.submit(Request(tuple(prompt), SamplingParams(temp=0, ignore_eos=True), 12))
        events = []
        while not engine.idle:
            events += engine.step()
        last = events[-1]
        assert isinstance(last, Finished)
        assert last.tokens == one.chosen
        assert one.logits.shape == (12, context.model.vocab.n_tokens)
    engine.close()


def test_the_same_again_differs_in_nothing(context: Context) -> None:
    base = trace(context, PROMPTS, 12, Stop())
    drift = compare("m", AGAIN, base, trace(context, PROMPTS, 12, Stop(), along=base))
    assert drift == Drift("m", AGAIN, 48, None, 0, 0.0, 0.0, 0.0, 1.0, True, "")
    assert sentence(drift) == "identical bit for bit"


def test_together_is_near_alone(context: Context) -> None:
    base = trace(context, PROMPTS, 12, Stop())
    drift = compare("m", "4 at once", base, trace(context, PROMPTS, 12, Stop(), along=base, at_once=4))
    assert drift.logit_difference < 1e-4
    assert drift.kl_max < 1e-6


def planted(base: list[Trace], step: int) -> list[Trace]:
    """In the third prompt, another token wins at `step`."""
    logits = base[2].logits.copy()
    chosen = list(base[2].chosen)
    other = (chosen[step] + 1) % logits.shape[1]
    logits[step, other] = logits[step].max() + 0.5
    chosen[step] = other
    return [*base[:2], Trace(tuple(chosen), logits), *base[3:]]


def test_a_planted_difference_is_found_where_it_is(context: Context) -> None:
    base = trace(context, PROMPTS, 12, Stop())
    other = planted(base, 6)
    drift = compare("m", "planted", base, other)
    assert (drift.first_difference, drift.prompts_differing) == (7, 1)
    assert drift.same_top == pytest.approx(47 / 48)
    assert drift.logit_difference == pytest.approx(float(np.abs(base[2].logits[6] - other[2].logits[6]).max()))
    p, q = (np.exp(x[2].logits[6].astype(np.float64)) for x in (base, other))
    p, q = p / p.sum(), q / q.sum()
    assert drift.kl_max == pytest.approx(float((p * np.log(p / q)).sum()))
    assert drift.kl_mean == pytest.approx(drift.kl_max / 48)
    assert sentence(drift) == "other tokens in 1 of 4 prompts"
    assert not drift.finding


def test_repeats_that_differ_are_a_finding(context: Context) -> None:
    base = trace(context, PROMPTS, 8, Stop())
    assert "run twice" in compare("m", AGAIN, base, planted(base, 3)).finding


class Tampered(OpenSubject):
    """Answers from other weights wherever one setting is used."""

    def __init__(self, path: Path, other: Path, when: Setting) -> None:
        super().__init__(str(path), Quiet(), ModelSettings())
        self._other, self._when = OpenSubject(str(other), Quiet(), ModelSettings()), when

    def open(self, setting: Setting, need: Need) -> Context:
        return self._other.open(setting, need) if setting == self._when else super().open(setting, need)

    def close(self) -> None:
        super().close()
        self._other.close()


def test_the_report_finds_the_setting_that_was_tampered_with(tiny_model: Path, tmp_path: Path) -> None:
    base = replace(BASE, flash_attn="on")
    guilty = next(variant for variant in variants(base, 2) if variant.name.startswith("passes"))
    subject = Tampered(tiny_model, tiny_gguf(tmp_path / "other.gguf", seed=7), guilty.setting)
    found = {drift.variant: drift for drift in run_drift(subject, BASE, 2, Stop(), Quiet())}
    assert found.pop(guilty.name).same_top < 0.5
    assert found.pop(AGAIN).identical
    assert len(found) >= 3
    assert all(drift.same_top > 0.9 and drift.kl_mean < 1e-3 for drift in found.values())
    subject.close()


def test_each_variant_changes_one_thing() -> None:
    for base in (BASE, replace(BASE, n_threads=4, kv_type=("q8_0", "q8_0"), flash_attn="on")):
        for variant in variants(base, 4):
            changed = [name for name in vars(base) if getattr(base, name) != getattr(variant.setting, name)]
            assert len(changed) + (variant.at_once > 1) == (variant.name != AGAIN), variant


def test_a_stop_ends_the_report(context: Context) -> None:
    stop = Stop()
    stop.ask()
    with pytest.raises(Interrupted):
        trace(context, PROMPTS, 4, stop)


def test_drift_from_the_command_line(tiny_model: Path) -> None:
    done = llmrun("bench", tiny_model, "--drift", "-t", "1", "--json")
    assert done.status == 0, done
    found = json.loads(done.text)["drift"]
    assert found[0]["variant"] == AGAIN
    assert found[0]["identical"]
    assert found[0]["n_tokens"] == len(TEXTS) * N_GEN
    assert "q8_0 KV cache is left out" in done.err
    llmrun("bench", tiny_model, "--drift", "-t", "1,2").failed(2, "one value")
