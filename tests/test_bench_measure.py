"""Timing of prefill and decode on a tiny model, with a clock of the test's own; repeats, spread and roofline."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from llmrun.bench.grid import Case, Grid
from llmrun.bench.measure import Loop, measure_case
from llmrun.bench.roofline import bound, kv_read_bytes, mixed_bandwidth, weight_bytes, with_roofline
from llmrun.bench.row import Row, loop_row
from llmrun.bench.samples import deviation, mean, median, sample, spread
from llmrun.bench.stop import Stop
from llmrun.bench.subject import Need
from llmrun.bench.table import loop_table, markdown, warnings
from llmrun.engine.context import Context, ContextSettings
from llmrun.engine.device_memory import device_bandwidth
from llmrun.engine.model import Model, ModelSettings
from llmrun.errors import Interrupted
from llmrun.gguf.header import open_header
from llmrun.gguf.info import model_info
from llmrun.plan.weights import sort_tensors
from llmrun.prepare.subject import OpenSubject
from llmrun.report import Quiet
from tests.tiny import tiny_gguf

SETTING = Grid(ubatch=(16,), batch=(32,)).settings(1)[0]


@pytest.fixture
def context(tiny_model: Path) -> Iterator[Context]:
    with Model.load(tiny_model, ModelSettings()) as model:
        settings = ContextSettings(256, n_batch=32, n_ubatch=16)
        with Context(model, settings) as made:
            yield made


def test_samples_count_tokens_over_the_time_of_each_repeat(context: Context) -> None:
    """BEN-04: the clock is read around each repeat only, so neither warm-up nor prefix is counted."""
    times = iter([10.0, 12.0, 20.0, 22.0, 30.0, 32.0])
    assert measure_case(context, Case(40, 0, 50, 3, SETTING), Stop(), lambda: next(times)) == (20.0, 20.0, 20.0)
    assert next(times, None) is None


def test_prefix_prompt_and_answer_end_up_in_the_cache_at_their_places(context: Context) -> None:
    ticks = itertools.count()
    measure_case(context, Case(40, 5, 50, 2, SETTING), Stop(), lambda: float(next(ticks)))
    assert context._lib.llama_memory_seq_pos_max(context._memory, 0) == 50 + 40 + 5 - 1
    loop = Loop(context, Stop())
    loop.rewind(50, [])
    assert context._lib.llama_memory_seq_pos_max(context._memory, 0) == 49
    loop.rewind(0, [])
    assert context.first_position(0) == -1
    loop.close()


def test_a_window_is_computed_anew_instead_of_being_rewound(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "gemma3.gguf", arch="gemma3", n_layer=6, sliding_window=16)
    with Model.load(path, ModelSettings()) as model, Context(model, ContextSettings(256, 32, 16)) as context:
        ticks = itertools.count()
        measure_case(context, Case(0, 20, 64, 2, SETTING), Stop(), lambda: float(next(ticks)))
        loop = Loop(context, Stop())
        prefix = loop.batches(64, 0)
        loop.rewind(64, prefix)
        assert context._lib.llama_memory_seq_pos_max(context._memory, 0) == 63
        # The window is whole again, which it would not be had 20 tokens been taken off the end.
        assert context.first_position(0) <= 64 - 16
        for batch in prefix:
            batch.close()
        loop.close()


def test_a_stop_ends_prefill_and_decode(context: Context) -> None:
    stop = Stop()
    stop.ask()
    for case in (Case(40, 0, 0, 1, SETTING), Case(0, 4, 0, 1, SETTING)):
        with pytest.raises(Interrupted):
            measure_case(context, case, stop)


def test_repeats_are_added_while_they_are_apart_and_up_to_a_limit() -> None:
    """BEN-04: 5 repeats where they agree; more where they do not, three times as many at most."""
    assert sample(iter([100.0, 101.0, 99.0, 100.0, 100.0]).__next__, 5) == (100.0, 101.0, 99.0, 100.0, 100.0)
    wild = itertools.cycle([50.0, 150.0])
    assert len(sample(lambda: next(wild), 5)) == 15
    calming = itertools.chain([85.0], itertools.repeat(100.0))
    assert 5 < len(sample(lambda: next(calming), 5)) < 15
    assert sample(lambda: 3.0, 1) == (3.0,)


def test_statistics_have_no_zero_to_divide_by() -> None:
    assert (mean([]), median([]), deviation([]), spread([]), spread([0.0, 0.0]), deviation([4.0])) == (0,) * 6
    assert mean([1.0, 2.0, 6.0]) == 3.0
    assert median([1.0, 2.0, 6.0]) == 2.0
    assert deviation([1.0, 2.0, 6.0]) == pytest.approx(7**0.5)


def a_row(tiny_model: Path, **change: object) -> tuple[OpenSubject, Row]:
    subject = OpenSubject(str(tiny_model), Quiet(), ModelSettings())
    return subject, replace(loop_row(subject, Case(0, 128, 0, 5, SETTING), 0, [10.0] * 5), **change)  # type: ignore[arg-type]


def test_wide_spread_and_a_busy_machine_are_said_in_words(tiny_model: Path) -> None:
    """BEN-04: a wide spread is flagged in words."""
    subject, steady = a_row(tiny_model)
    assert warnings([steady]) == []
    wild = loop_row(subject, Case(0, 128, 0, 5, SETTING), 0, [50.0, 150.0, 100.0])
    assert "jumps by 50 % between 3 repeats" in warnings([wild])[0]
    served = replace(wild, kind="concurrency", test="serve 8+8", concurrency=4)
    assert "serve 8+8 x4 jumps by 50 %" in warnings([served])[0]
    assert "busy" in warnings([replace(steady, busy_cores=1.2)])[0]


def test_the_table_is_llama_benchs_and_shows_what_differs_from_the_default(tiny_model: Path) -> None:
    _, row = a_row(tiny_model, kv_type="q8_0", batch=2048, ubatch=512)
    table = loop_table([row], "CPU", bars=False)
    assert table.columns[:7] == ("model", "size", "params", "backend", "threads", "kv_type", "test")
    assert "10.00 ± 0.00" in table.rows[0]
    assert len({line.count("|") for line in markdown(table)}) == 1


def test_bytes_of_a_decoded_token_are_those_of_the_tensors(tmp_path: Path) -> None:
    header = open_header(tiny_gguf(tmp_path / "dense.gguf", tied=True))
    info = model_info(header)
    everything = sum(tensor.n_bytes for tensor in header.tensors)
    # A tied embedding is read whole as the output matrix, so all tensors are.
    assert weight_bytes(info, sort_tensors(header.tensors, info.n_layer)) == everything
    # 2 layers, keys and values of 2 heads of 16 elements in f16
    assert kv_read_bytes(info, ("f16", "f16"), 100) == 2 * 2 * 2 * 16 * 2 * 100
    assert kv_read_bytes(info, ("q8_0", "f16"), 100) == 2 * (34 + 64) * 100


def test_only_the_experts_that_take_part_are_counted(tmp_path: Path) -> None:
    header = open_header(tiny_gguf(tmp_path / "moe.gguf", n_expert=8))
    info = model_info(header)
    weights = sort_tensors(header.tensors, info.n_layer)
    experts = sum(tensor.n_bytes for tensor in header.tensors if "_exps" in tensor.name)
    embedding = next(tensor.n_bytes for tensor in header.tensors if tensor.name == "token_embd.weight")
    always = sum(tensor.n_bytes for tensor in header.tensors) - experts - embedding
    assert weight_bytes(info, weights) == always + experts // 4  # 2 of 8
    assert weight_bytes(info, weights, 2) == always + round(experts * (1 - 0.75**2))
    assert weight_bytes(info, weights, 10_000) == always + experts


def test_a_window_bounds_what_is_read(tmp_path: Path) -> None:
    info = model_info(open_header(tiny_gguf(tmp_path / "g.gguf", arch="gemma3", n_layer=6, sliding_window=32)))
    one = 2 * 16 * 2 * 2  # bytes of one layer's token
    assert kv_read_bytes(info, ("f16", "f16"), 1000) == one * (5 * 32 + 1000)


def test_bound_names_the_nearer_ceiling() -> None:
    assert bound(0.9, 0.2) == "memory"
    assert bound(0.3, 0.8) == "compute"
    assert bound(0.1, 0.1) == "overhead"
    assert bound(0.1, None) == "compute or overhead"
    assert bound(None, None) is None


def test_roofline_is_bytes_times_speed(tiny_model: Path) -> None:
    subject, row = a_row(tiny_model)
    weights = weight_bytes(subject.info, sort_tensors(subject.tensors, subject.info.n_layer))
    expected = 10 * (weights + kv_read_bytes(subject.info, ("f16", "f16"), 64))
    told = with_roofline(subject, row, 2 * expected, 10_000.0)
    assert told.bandwidth_bytes_per_s == pytest.approx(expected)
    assert told.bandwidth_share == pytest.approx(0.5)
    assert told.bound == "memory"
    assert with_roofline(subject, row, 0.0, None).bandwidth_share is None


def test_ctrl_c_falls_where_nothing_asks_for_it() -> None:
    stop = Stop()
    with pytest.raises(KeyboardInterrupt), stop.waiting():
        stop.ask()
    with pytest.raises(Interrupted), stop.waiting():
        pass
    stop.ask()  # outside, it is only remembered
    assert stop()


def test_weights_are_loaded_again_only_where_layers_move(tiny_model: Path) -> None:
    subject = OpenSubject(str(tiny_model), Quiet(), ModelSettings())
    with subject.open(SETTING, Need(64)) as first:
        with subject.open(replace(SETTING, n_threads=2, n_ubatch=8), Need(128, 2)) as second:
            assert second.model is first.model
            assert (first.n_ctx, second.n_ctx) == (256, 256)
        model = first.model
    with subject.open(replace(SETTING, gpu_layers=0), Need(64)) as third:
        assert third.model is not model
        assert not model.pointer
    subject.close()
    subject.close()


def test_weights_on_two_memories_are_read_at_the_sum_of_their_times() -> None:
    devices = {"GPU1": 100.0, "GPU10": 400.0}
    assert mixed_bandwidth(1000, (), devices, 50.0) == 50.0
    assert mixed_bandwidth(1000, [("GPU1", 1000)], devices, 0.0) == 100.0
    # 500 at 400, 300 at 100, and 200 at 50 from the host, whose buffer spans more than is read from it
    buffers = [("GPU10", 500), ("GPU1", 300), ("CPU_Mapped", 900)]
    assert mixed_bandwidth(1000, buffers, devices, 50.0) == pytest.approx(1000 / (1.25 + 3 + 4))
    assert mixed_bandwidth(1000, [("RPC0[host:1]", 1000)], {"RPC0": 10.0}, 0.0) == 10.0


def test_what_is_not_known_makes_no_bandwidth() -> None:
    assert mixed_bandwidth(1000, [("GPU1", 500)], {"GPU1": 0.0}, 50.0) == 0.0
    assert mixed_bandwidth(1000, [("GPU1", 500)], {"GPU1": 100.0}, 0.0) == 0.0
    assert device_bandwidth("no such device") == 0.0


def test_copies_within_a_device_are_timed() -> None:
    assert 1e8 < device_bandwidth("CPU") < 1e13
