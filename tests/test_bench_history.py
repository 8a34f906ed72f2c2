"""Results kept and compared, and two settings in turn."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from llmrun.bench.compare import NO_DIFFERENCE, check_comparable, compare_rows, difference
from llmrun.bench.environment import BuildFacts, MachineFacts
from llmrun.bench.flags import with_flags
from llmrun.bench.grid import Case, Grid
from llmrun.bench.history import check_free, load, path_of, save
from llmrun.bench.row import Row, loop_row
from llmrun.bench.stop import Stop
from llmrun.bench.versus import alternate, check_sides, run_versus
from llmrun.engine.model import ModelSettings
from llmrun.errors import NotFoundError, StoreError, UsageError
from llmrun.prepare.subject import OpenSubject
from llmrun.report import Quiet
from tests.cli import llmrun

MACHINE = MachineFacts("a CPU", 2, "2 physical cores", 4, None, 0.1, "", 16 * 10**9, (), 2e10)
BUILD = BuildFacts("0", "0.3.36", "x", ("CPU",))
SETTING = Grid().settings(2)[0]


@pytest.fixture
def row(tiny_model: Path) -> Row:
    subject = OpenSubject(str(tiny_model), Quiet(), ModelSettings())
    return loop_row(subject, Case(512, 0, 0, 3, SETTING), 0, [100.0, 101.0, 99.0])


def test_what_is_saved_comes_back_equal(row: Row) -> None:
    path = save("before.change-1", MACHINE, BUILD, [row, replace(row, test="tg128")])
    found = load("before.change-1")
    assert (found.machine, found.build, found.rows) == (MACHINE, BUILD, (row, replace(row, test="tg128")))
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    with pytest.raises(UsageError, match="named before"):
        check_free("before.change-1", replace=False)
    check_free("before.change-1", replace=True)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "\x1b[0m"])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot name"):
        path_of(name)


def test_absent_and_damaged_results_say_so(row: Row) -> None:
    with pytest.raises(NotFoundError, match="no results named nothing"):
        load("nothing")
    path = save("one", MACHINE, BUILD, [row])
    with pytest.raises(NotFoundError) as caught:
        load("two")
    assert "one" in caught.value.hint
    whole = path.read_text(encoding="utf-8")
    for damaged in ("", "{}", whole[: len(whole) // 2], "[]\n" + whole):
        path.write_text(damaged, encoding="utf-8")
        with pytest.raises(StoreError, match="cannot be read"):
            load("one")


def test_rows_of_the_same_test_and_settings_are_compared(row: Row) -> None:
    faster = replace(row, samples_tps=(120.0, 121.0, 119.0))
    (found,) = compare_rows([row, replace(row, test="tg128")], [faster])
    assert found.ratio == pytest.approx(1.2)
    assert found.verdict == "faster by 20.0 %"
    for other in ("threads", "ubatch"):
        assert compare_rows([row], [replace(faster, **{other: 64})]) == []
    assert compare_rows([row], [replace(faster, sha256="other")]) == []
    assert len(compare_rows([row], [replace(faster, sha256="other")], anyway=True)) == 1


def test_overlapping_spreads_are_no_difference() -> None:
    assert difference("m", "t", "tok/s", [100, 110, 90], [105, 112, 95]).verdict == NO_DIFFERENCE
    assert difference("m", "t", "tok/s", [100, 101, 99], [90, 91, 89]).verdict == "slower by 10.0 %"
    assert difference("m", "t", "s", [1.00, 1.01, 0.99], [0.5, 0.51, 0.49]).verdict == "faster by 50.0 %"


def test_other_machines_and_models_are_refused(row: Row) -> None:
    check_comparable(MACHINE, [row], replace(MACHINE, load=9.0, bandwidth_bytes_per_s=1.0), [row.sha256])
    with pytest.raises(UsageError, match="another machine"):
        check_comparable(MACHINE, [row], replace(MACHINE, cpu="another CPU"), [row.sha256])
    with pytest.raises(UsageError, match="other model files"):
        check_comparable(MACHINE, [row], MACHINE, ["other"])


def test_sides_alternate_until_both_are_steady() -> None:
    order: list[str] = []
    values = {"a": itertools.repeat(100.0), "b": itertools.chain([80.0], itertools.repeat(100.0))}

    def side(name: str) -> float:
        order.append(name)
        return next(values[name])

    first, second = alternate(lambda: side("a"), lambda: side("b"), 4)
    assert order == ["a", "b"] * len(first)
    assert 4 < len(first) == len(second) <= 12


def test_flags_of_a_side_change_the_grid() -> None:
    grid = with_flags(Grid(), "-t 1 --kv-type q8_0 -p 64,128 -fa on")
    assert (grid.threads, grid.kv_type, grid.n_prompt) == ((1,), (("q8_0", "q8_0"),), (64, 128))
    assert with_flags(Grid(), "-ctk q8_0").kv_type == (("q8_0", "f16"),)
    assert with_flags(Grid(), "--cache-type-v q4_0 --kv-type q8_0 -ctk f16").kv_type == (("f16", "q8_0"),)
    for wrong in ("--nonsense 1", "-ctk q9", "-t", "-t x", "'"):
        with pytest.raises(UsageError):
            with_flags(Grid(), wrong)
    with pytest.raises(UsageError, match="different tests"):
        check_sides(Grid().cases(1), with_flags(Grid(), "-p 64").cases(1))


def test_two_settings_of_one_model_run_side_by_side(tiny_model: Path) -> None:
    subject = OpenSubject(str(tiny_model), Quiet(), ModelSettings())
    a, b = (with_flags(Grid((16,), (4,), repeats=(2,)), text).cases(1) for text in ("-ub 8", "-ub 16"))
    found = list(run_versus((subject, subject), a, b, Stop(), Quiet()))
    assert [one.test for one in found] == ["pp16", "tg4"]
    assert all(one.ratio > 0 for one in found)
    subject.close()


def test_save_compare_and_ab_from_the_command_line(tiny_model: Path, tmp_path: Path) -> None:
    shape = ("bench", tiny_model, "-p", "16", "-n", "0", "-r", "2", "-t", "1")
    assert llmrun(*shape, "--save", "base").status == 0
    llmrun(*shape, "--save", "base").failed(2, "named base", "--force")
    llmrun(*shape, "--compare", "bse").failed(1, "no results named bse", "base")
    done = llmrun(*shape, "--compare", "base")
    assert "RATIO" in done.text
    llmrun("bench", "--ab", "-t 1", "-x 2", tiny_model).failed(2, "-x")
