"""Scheduling policy and prefix choice, without a model."""

import random

import pytest

from llmrun.engine.prefix import Resident, Reuse, choose, common_length, reusable_length
from llmrun.engine.request import Request
from llmrun.engine.scheduler import Scheduler, Sequence


def sequence(id: int, n_prompt: int, limit: int) -> Sequence:
    return Sequence(id, Request(tuple(range(n_prompt))), list(range(n_prompt)), limit)


def admit_all(scheduler: Scheduler) -> list[int]:
    admitted = []
    while (found := scheduler.next_admissible()) is not None:
        found.slot = next(s for s in range(scheduler.n_seq_max) if s not in {r.slot for r in scheduler.running})
        admitted.append(found.request_id)
    return admitted


def test_admission_reserves_all_cells_a_sequence_may_need() -> None:
    scheduler = Scheduler(n_ctx=100, n_batch=32, n_seq_max=4)
    for id, limit in ((1, 60), (2, 50), (3, 10)):
        scheduler.add(sequence(id, 5, limit))
    assert admit_all(scheduler) == [1]  # 2 does not fit beside it, and 3 does not overtake 2
    scheduler.remove(scheduler.running[0])
    assert admit_all(scheduler) == [2, 3]


def test_decoding_comes_before_prompts_and_the_budget_holds() -> None:
    scheduler = Scheduler(n_ctx=1000, n_batch=10, n_seq_max=3)
    for id in (1, 2, 3):
        scheduler.add(sequence(id, 8, 100))
    admit_all(scheduler)
    first = scheduler.running[0]
    first.n_kv = 8
    first.tokens.append(7)
    chunks = scheduler.chunks()
    assert [(c.sequence.request_id, c.n_tokens, c.last) for c in chunks] == [
        (1, 1, True),
        (2, 8, True),
        (3, 1, False),
    ]


@pytest.mark.parametrize("seed", range(30))
def test_every_request_ends_and_nothing_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    scheduler = Scheduler(n_ctx=120, n_batch=rng.choice([1, 7, 64]), n_seq_max=rng.randint(1, 5))
    waiting = [sequence(id, rng.randint(1, 60), 0) for id in range(20)]
    for one in waiting:
        one.limit = len(one.tokens) + rng.randint(1, 40)
    finished: set[int] = set()
    for _ in range(10_000):
        if waiting and rng.random() < 0.3:
            scheduler.add(waiting.pop())
        admit_all(scheduler)
        scheduler.check_integrity()
        chunks = scheduler.chunks()
        assert sum(chunk.n_tokens for chunk in chunks) <= scheduler.n_batch
        for chunk in chunks:
            chunk.sequence.n_kv += chunk.n_tokens
            if chunk.last:
                chunk.sequence.tokens.append(0)
            if len(chunk.sequence.tokens) == chunk.sequence.limit:
                finished.add(chunk.sequence.request_id)
                scheduler.remove(chunk.sequence)
        if not waiting and scheduler.idle:
            break
    assert finished == set(range(20))


def test_common_length() -> None:
    assert common_length([1, 2, 3], [1, 2, 4]) == 2
    assert common_length([1, 2], [1, 2, 4]) == 2
    assert common_length([], [1]) == 0


def test_the_last_prompt_token_is_always_computed() -> None:
    assert reusable_length([1, 2, 3], Resident(0, [1, 2, 3, 4]), n_swa=0, whole_only=False) == 2


def test_a_sliding_window_forbids_reuse_where_cells_before_the_cut_are_gone() -> None:
    prompt = list(range(100))
    resident = Resident(0, list(range(80)), first_position=70)
    assert reusable_length(prompt, resident, n_swa=10, whole_only=False) == 80
    shorter = Resident(0, [*range(75), -1], first_position=70)
    assert reusable_length(prompt, shorter, n_swa=10, whole_only=False) == 0  # needs cells from 65 on


def test_recurrent_state_is_used_whole_or_not_at_all() -> None:
    assert reusable_length([1, 2, 3, 4], Resident(0, [1, 2]), n_swa=0, whole_only=True) == 2
    assert reusable_length([1, 2, 3, 4], Resident(0, [1, 2, 9]), n_swa=0, whole_only=True) == 0


def test_choice_continues_in_place_when_the_prefix_is_most_of_a_resident() -> None:
    residents = [Resident(0, [1, 2, 3, 4]), Resident(1, [])]
    assert choose([1, 2, 3, 9], residents, 0, False) == Reuse(0, 0, 3)


def test_choice_shares_a_prefix_of_a_running_sequence() -> None:
    residents = [Resident(0, [1, 2, 3], busy=True), Resident(1, [7, 8], last_used=5), Resident(2, [], last_used=9)]
    assert choose([1, 2, 5], residents, 0, False) == Reuse(2, 0, 2)


def test_choice_keeps_a_long_conversation_that_shares_little() -> None:
    residents = [Resident(0, list(range(100)), last_used=1), Resident(1, [])]
    assert choose([0, 1, 2, -1], residents, 0, False) == Reuse(1, 0, 3)


def test_choice_evicts_the_least_recently_used() -> None:
    residents = [Resident(0, [5], last_used=3), Resident(1, [6], last_used=2)]
    assert choose([1, 2], residents, 0, False) == Reuse(1, 1, 0)
