"""Lists and ranges of `bench`, the cross product, and the names of tests."""

import pytest

from llmrun.bench.grid import (
    Case,
    Grid,
    parse_cache_types,
    parse_counts,
    parse_flash_attn,
    parse_kv_types,
    parse_layers,
    parse_pairs,
    with_halves,
)
from llmrun.errors import UsageError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("512", (512,)),
        ("1,2,4", (1, 2, 4)),
        ("1-4", (1, 2, 3, 4)),
        ("16-64+16", (16, 32, 48, 64)),
        ("128-1024*2", (128, 256, 512, 1024)),
        ("100-1000*3", (100, 300, 900)),
        ("0,128-256*2,0", (0, 128, 256)),
    ],
)
def test_lists_and_ranges_are_read_as_in_llama_bench(text: str, values: tuple[int, ...]) -> None:
    assert parse_counts(text, "-p") == values


@pytest.mark.parametrize(
    "text", ["", "x", "1,,2", "-5", "4-1", "1-4*1", "0-4*2", "1-9+0", "1-100000", "99999999", "1.5"]
)
def test_a_list_that_means_nothing_is_refused_by_its_flag(text: str) -> None:
    with pytest.raises(UsageError, match="-p"):
        parse_counts(text, "-p")


def test_least_value_is_kept() -> None:
    with pytest.raises(UsageError, match="not between 1"):
        parse_counts("0", "--threads", 1)


def test_words_and_pairs() -> None:
    assert parse_layers("auto,all,0-2") == (None, -1, 0, 1, 2)
    assert parse_kv_types("f16,q8_0/f16") == (("f16", "f16"), ("q8_0", "f16"))
    assert parse_flash_attn("on,0,AUTO") == ("on", "off", "auto")
    assert parse_pairs(["512,128", "64,1"]) == ((512, 128), (64, 1))
    assert parse_cache_types("Q8_0, f16,q8_0", "-ctk") == ("q8_0", "f16")
    wrongs = (lambda: parse_kv_types("q9"), lambda: parse_kv_types("f16/"), lambda: parse_cache_types("", "-ctv"))
    for wrong in (*wrongs, lambda: parse_flash_attn("maybe"), lambda: parse_pairs(["512"])):
        with pytest.raises(UsageError):
            wrong()


def test_halves_of_the_cache_are_crossed_as_llama_bench_does() -> None:
    both = (("f16", "f16"),)
    assert with_halves(both, ("f16", "q8_0"), ("q4_0", "f16")) == (
        ("f16", "q4_0"),
        ("f16", "f16"),
        ("q8_0", "q4_0"),
        ("q8_0", "f16"),
    )
    assert with_halves((("f16", "f16"), ("q8_0", "q4_0")), ("bf16",), ()) == (("bf16", "f16"), ("bf16", "q4_0"))
    assert with_halves(both, (), ()) == both


def test_every_combination_is_run_once_and_layers_change_last() -> None:
    grid = Grid(
        n_prompt=(64, 128),
        n_gen=(16,),
        pairs=((32, 8),),
        depth=(0, 32),
        threads=(1, 2),
        gpu_layers=(0, -1),
        ubatch=(32, 64),
    )
    cases = grid.cases(7)
    assert len(cases) == len(set(cases)) == 4 * 2 * 2 * 2 * 2
    layers = [case.setting.gpu_layers for case in cases]
    assert layers == sorted(layers, reverse=True)
    assert {case.setting.n_threads for case in cases} == {1, 2}
    assert {case.setting.n_threads for case in Grid().cases(7)} == {7}


def test_names_are_llama_benchs() -> None:
    setting = Grid().settings(1)[0]
    names = [Case(p, n, d, 1, setting).name for p, n, d in ((512, 0, 0), (0, 128, 512), (512, 128, 0))]
    assert names == ["pp512", "tg128 @ d512", "pp512+tg128"]
    assert [case.name for case in Grid().cases(1)] == ["pp512", "tg128"]


def test_nothing_to_run_and_far_too_much_are_refused() -> None:
    with pytest.raises(UsageError, match="no test"):
        Grid(n_prompt=(0,), n_gen=(0,)).cases(1)
    with pytest.raises(UsageError, match="tests"):
        Grid(n_prompt=tuple(range(1, 900)), n_gen=tuple(range(1, 900)), depth=tuple(range(9))).cases(1)
