"""How the values of settings are read."""

import pytest

from llmrun.cli.options import count
from llmrun.errors import UsageError
from llmrun.prepare.settings import parse_kv_type

LAYERS = ("gpu-layers", ("auto", "all"))


def test_layers_are_a_number_or_a_word() -> None:
    assert [count(text, *LAYERS) for text in ("auto", "ALL", "0", "33", None)] == ["auto", "all", 0, 33, None]
    for text in ("", "-1", "many", "1e3"):
        with pytest.raises(UsageError, match="--gpu-layers"):
            count(text, *LAYERS)


def test_a_kv_type_is_one_or_two() -> None:
    assert parse_kv_type("Q8_0") == ("q8_0", "q8_0")
    assert parse_kv_type("f16, q8_0") == ("f16", "q8_0")
    for text in ("q9", "", "f16,", "f16,f16,f16"):
        with pytest.raises(UsageError, match="--kv-type"):
            parse_kv_type(text)
