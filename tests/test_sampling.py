"""Every sampler on a tiny model's logits, against its definition."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from llmrun.engine import capi
from llmrun.engine.batch import Batch
from llmrun.engine.context import Context, ContextSettings
from llmrun.engine.model import Model, ModelSettings
from llmrun.engine.params import DEFAULT_ORDER, MAX_SEED, SamplingParams, check_params, draw_seed
from llmrun.engine.sampling import Sampler
from llmrun.errors import GrammarError, UsageError
from tests import sampling_reference as reference
from tests.sampling_reference import Logits

OFF = {"temp": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
RECENT = [5, 6, 7, 5, 6, 9, 9, 5, 6]


@pytest.fixture(scope="module")
def context(tiny_model: Path) -> Iterator[Context]:
    with Model.load(tiny_model, ModelSettings()) as model, Context(model, ContextSettings(256)) as made:
        batch = Batch(8)
        batch.add([1, 2, 3], 0, 0, last_logits=True)
        made.decode(batch)
        yield made


@pytest.fixture(scope="module")
def logits(context: Context) -> Logits:
    n = context.model.vocab.n_tokens
    values = np.ctypeslib.as_array(context.logits(2), shape=(n,)) * 4  # sharper than random weights are
    return dict(enumerate(values.astype(np.float32).astype(float).tolist()))


def probabilities(context: Context, logits: Logits, recent: list[int], **params: object) -> dict[int, float]:
    """What the chain leaves of the logits: {token: probability}."""
    sampler = Sampler(SamplingParams(**{**OFF, **params}), context.model.vocab)  # type: ignore[arg-type]
    for token in recent:
        sampler.accept(token)
    lib = capi.lib()
    data = (lib.llama_token_data * len(logits))(*((token, value, 0.0) for token, value in logits.items()))
    array = lib.llama_token_data_array(data, len(logits), -1, False)
    lib.llama_sampler_apply(sampler._chain, ctypes.byref(array))
    left = {array.data[i].id: float(array.data[i].logit) for i in range(array.size)}
    sampler.close()
    return reference.softmax(left)


def check(found: dict[int, float], expected: Logits) -> None:
    wanted = {token: p for token, p in reference.softmax(expected).items() if p > 0}
    found = {token: p for token, p in found.items() if p > 0}
    assert found.keys() == wanted.keys()
    for token, p in wanted.items():
        assert found[token] == pytest.approx(p, rel=1e-4, abs=1e-7)


def test_temperature(context: Context, logits: Logits) -> None:
    check(probabilities(context, logits, [], temp=0.7), reference.temperature(logits, 0.7))


@pytest.mark.parametrize("k", [1, 5, 40])
def test_top_k(context: Context, logits: Logits, k: int) -> None:
    check(probabilities(context, logits, [], top_k=k), reference.top_k(logits, k))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.95])
def test_top_p(context: Context, logits: Logits, p: float) -> None:
    check(probabilities(context, logits, [], top_p=p), reference.top_p(logits, p))


@pytest.mark.parametrize("p", [0.05, 0.5])
def test_min_p(context: Context, logits: Logits, p: float) -> None:
    check(probabilities(context, logits, [], min_p=p), reference.min_p(logits, p))


@pytest.mark.parametrize("p", [0.2, 0.8])
def test_typical(context: Context, logits: Logits, p: float) -> None:
    check(probabilities(context, logits, [], typical=p), reference.typical(logits, p))


@pytest.mark.parametrize("n", [0.5, 2.0])
def test_top_n_sigma(context: Context, logits: Logits, n: float) -> None:
    found = probabilities(context, logits, [], top_n_sigma=n)
    check(found, reference.top_n_sigma(logits, n))


def test_dynamic_temperature(context: Context, logits: Logits) -> None:
    found = probabilities(context, logits, [], temp=0.8, dynatemp_range=0.5, dynatemp_exponent=1.5)
    check(found, reference.dynamic_temperature(logits, 0.8, 0.5, 1.5))


def test_penalties(context: Context, logits: Logits) -> None:
    found = probabilities(context, logits, RECENT, repeat_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2)
    check(found, reference.penalties(logits, RECENT, 1.3, 0.4, 0.2))


def test_penalties_look_back_only_so_far(context: Context, logits: Logits) -> None:
    found = probabilities(context, logits, RECENT, repeat_penalty=1.3, repeat_last_n=3)
    check(found, reference.penalties(logits, RECENT[-3:], 1.3, 0, 0))


def test_xtc(context: Context, logits: Logits) -> None:
    found = probabilities(context, logits, [], xtc_probability=1.0, xtc_threshold=0.02)
    check(found, reference.xtc(logits, 0.02))


def test_dry(context: Context, logits: Logits) -> None:
    found = probabilities(context, logits, RECENT, dry_multiplier=0.8, dry_base=1.75, dry_allowed_length=2)
    check(found, reference.dry(logits, RECENT, 0.8, 1.75, 2))


def test_mirostat_truncates_at_twice_tau_at_first(context: Context, logits: Logits) -> None:
    found = probabilities(context, logits, [], mirostat=2, mirostat_tau=2.0, top_k=3)
    check(found, reference.mirostat_v2(logits, 4.0))


def test_logit_bias(context: Context, logits: Logits) -> None:
    found = probabilities(context, logits, [], logit_bias=((7, 3.5), (9, float("-inf"))))
    check(found, {**logits, 7: logits[7] + 3.5, 9: float("-inf")})


def test_order_matters_and_is_the_users(context: Context, logits: Logits) -> None:
    hot_first = probabilities(context, logits, [], temp=3.0, min_p=0.3, samplers=("temperature", "min-p"))
    cut_first = probabilities(context, logits, [], temp=3.0, min_p=0.3, samplers=("min-p", "temperature"))
    check(hot_first, reference.min_p(reference.temperature(logits, 3.0), 0.3))
    check(cut_first, reference.temperature(reference.min_p(logits, 0.3), 3.0))
    assert hot_first.keys() != cut_first.keys()


def test_a_sampler_left_out_of_the_order_does_nothing(context: Context, logits: Logits) -> None:
    check(probabilities(context, logits, [], top_k=3, samplers=("top-p",)), logits)


def test_ignore_eos_bans_every_end_token(context: Context, logits: Logits) -> None:
    found = probabilities(context, logits, [], ignore_eos=True)
    ends = context.model.vocab.eog_tokens
    assert ends
    assert all(found[token] == 0 for token in ends)


def test_greedy_takes_the_likeliest(context: Context) -> None:
    n = context.model.vocab.n_tokens
    values = np.ctypeslib.as_array(context.logits(2), shape=(n,))
    sampler = Sampler(SamplingParams(temp=0, top_k=3), context.model.vocab)
    assert sampler.sample(context, 2) == int(values.argmax())


def test_greedy_still_obeys_penalties(context: Context) -> None:
    n = context.model.vocab.n_tokens
    best = int(np.ctypeslib.as_array(context.logits(2), shape=(n,)).argmax())
    sampler = Sampler(SamplingParams(temp=0, presence_penalty=50), context.model.vocab)
    sampler.accept(best)
    assert sampler.sample(context, 2) != best


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"temp": -1}, "--temp"),
        ({"temp": float("nan")}, "--temp"),
        ({"top_p": 1.1}, "--top-p"),
        ({"min_p": -0.1}, "--min-p"),
        ({"repeat_penalty": 0}, "--repeat-penalty"),
        ({"seed": MAX_SEED + 1}, "--seed"),
        ({"mirostat": 1}, "--mirostat"),
        ({"samplers": ("top-k", "luck")}, "luck"),
    ],
)
def test_values_that_mean_nothing_are_refused(params: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        check_params(SamplingParams(**params))  # type: ignore[arg-type]


def test_seeds_are_drawn_anew() -> None:
    """REP-01"""
    assert len({draw_seed() for _ in range(20)}) == 20


def test_a_grammar_bounds_every_token(context: Context) -> None:
    sampler = Sampler(SamplingParams(seed=3, grammar='root ::= "ab" | "cd"'), context.model.vocab)
    first = context.model.vocab.piece(sampler.sample(context, 2))
    second = context.model.vocab.piece(sampler.sample(context, 2))
    assert first + second in (b"ab", b"cd")
    assert context.model.vocab.is_eog(sampler.sample(context, 2))


@pytest.mark.parametrize("grammar", ["root ::= (", "root ::= foo", "nothing"])
def test_a_grammar_that_does_not_compile_is_an_error(context: Context, grammar: str) -> None:
    """GRM-01"""
    with pytest.raises(GrammarError):
        Sampler(SamplingParams(grammar=grammar), context.model.vocab)


def test_default_order_names_every_sampler() -> None:
    assert len(set(DEFAULT_ORDER)) == len(DEFAULT_ORDER) == 9
