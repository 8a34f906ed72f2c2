"""A file that passed the check is not walked again while it stays the same, and is the moment it does not."""

import json
import os
from pathlib import Path

import pytest

from llmrun.errors import ModelFileError
from llmrun.gguf.header import Header
from llmrun.gguf.values import StringArray
from llmrun.prepare import accepted
from llmrun.prepare.accepted import checked_headers
from tests.tiny import tiny_gguf, tiny_split

TOKENS = "tokenizer.ggml.tokens"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_gguf(tmp_path / "m.gguf", n_vocab=1500)


@pytest.fixture
def records(home: Path) -> Path:
    return home / "cache" / "accepted"


def content(header: Header) -> tuple[object, ...]:
    arrays = {key: value.raw for key, value in header.metadata.items() if isinstance(value, StringArray)}
    plain = {key: value for key, value in header.metadata.items() if isinstance(value, str | int | float)}
    return plain, arrays, header.tensors, header.data_offset


def test_the_second_reading_is_the_first(model: Path, records: Path) -> None:
    (first,) = checked_headers([model])
    (record,) = records.iterdir()
    walked = first.metadata[TOKENS]
    assert isinstance(walked, StringArray)
    assert json.loads(record.read_text())["spans"] == [{TOKENS: len(walked.raw)}]
    (second,) = checked_headers([model])
    assert content(second) == content(first)


def test_a_change_of_equal_size_and_date_is_checked_again(model: Path) -> None:
    checked_headers([model])
    status = model.stat()
    damaged = model.read_bytes().replace(b"llama.block_count", b"llama.block_kount")
    model.write_bytes(damaged)
    os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (model.stat().st_size, model.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    for _ in range(2):  # what is refused is not remembered
        with pytest.raises(ModelFileError, match="block_count is missing"):
            checked_headers([model])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: record | {"spans": [{TOKENS: 12}]},
        lambda record: record | {"spans": [{TOKENS: 1 << 40}]},
        lambda record: record | {"spans": [{TOKENS: None}]},
        lambda record: record | {"spans": 3},
        lambda record: {"stamp": record["stamp"]},
        lambda record: [],
    ],
)
def test_a_record_that_does_not_fit_is_of_no_account(model: Path, records: Path, spoil: object) -> None:
    (first,) = checked_headers([model])
    (record,) = records.iterdir()
    assert callable(spoil)
    record.write_text(json.dumps(spoil(json.loads(record.read_text()))))
    assert content(checked_headers([model])[0]) == content(first)


def test_parts_are_remembered_together(tmp_path: Path, records: Path) -> None:
    parts = tiny_split(tmp_path, 3)
    first = checked_headers(parts)
    assert len(list(records.iterdir())) == 1
    assert [content(header) for header in checked_headers(parts)] == [content(header) for header in first]
    parts[2].write_bytes(parts[2].read_bytes()[:-64])
    with pytest.raises(ModelFileError, match="incomplete"):
        checked_headers(parts)


def test_the_oldest_records_go(tmp_path: Path, records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted, "_MOST_RECORDS", 2)
    models = [tiny_gguf(tmp_path / f"{n}.gguf", seed=n) for n in range(4)]
    for n, model in enumerate(models):
        checked_headers([model])
        for record in records.iterdir():
            if record.stat().st_mtime_ns > 10**18:
                os.utime(record, ns=(10**9 * n, 10**9 * n))
    last = {f"{model.stat().st_dev:x}-{model.stat().st_ino:x}.json" for model in models[2:]}
    assert {record.name for record in records.iterdir()} == last


def test_without_a_cache_to_write_to_the_check_goes_on(model: Path, home: Path) -> None:
    home.mkdir(parents=True)
    (home / "cache").write_text("a file where a folder should be")
    assert checked_headers([model])[0].metadata[TOKENS]
