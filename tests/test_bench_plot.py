"""Pictures of results: what is drawn, what is refused."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from llmrun.bench.grid import Case, Grid
from llmrun.bench.plot import check_plot, draw
from llmrun.bench.row import Row, loop_row
from llmrun.engine.model import ModelSettings
from llmrun.errors import UsageError
from llmrun.prepare.subject import OpenSubject
from llmrun.report import Quiet
from tests.cli import llmrun

SETTING = Grid().settings(1)[0]


@pytest.fixture
def row(tiny_model: Path) -> Row:
    subject = OpenSubject(str(tiny_model), Quiet(), ModelSettings())
    return loop_row(subject, Case(512, 0, 0, 3, SETTING), 0, [100.0, 101.0, 99.0])


def drawn_texts(path: Path) -> str:
    """matplotlib keeps each text as a comment beside its outlines."""
    parser = ET.XMLParser(target=ET.TreeBuilder(insert_comments=True))
    tree = ET.fromstring(path.read_text(encoding="utf-8"), parser=parser)
    return "\n".join(node.text or "" for node in tree.iter() if node.tag is ET.Comment)


def test_each_kind_of_result_has_its_picture(row: Row, tmp_path: Path) -> None:
    served = [
        replace(row, kind="concurrency", test="serve 128+64", concurrency=n, itl_p50_s=n / 100, itl_p95_s=n / 90)
        for n in (1, 2, 4)
    ]
    deep = [row, replace(row, depth=512, test="pp512 @ d512")]
    for rows, titles in (
        ([row, replace(row, model="other")], ["speed", "tiny pp512", "other pp512"]),
        (deep, ["speed by depth", "tokens before the test"]),
        (served, ["throughput", "time between tokens"]),
        (deep + served, ["speed by depth", "throughput"]),
    ):
        path = tmp_path / "plot.svg"
        assert draw(rows, path)
        texts = drawn_texts(path)
        for title in titles:
            assert title in texts
    assert draw([row], tmp_path / "plot.PNG")
    assert (tmp_path / "plot.PNG").read_bytes().startswith(b"\x89PNG")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["plot.PNG", "plot.svg"]
    assert not draw([replace(row, kind="start")], path)


def test_no_line_leaves_the_picture(row: Row, tmp_path: Path) -> None:
    """The slow end of the times between tokens is many times their middle: the axis reaches up to it."""
    served = [
        replace(row, kind="concurrency", concurrency=n, itl_p50_s=n / 1000, itl_p95_s=n / 10) for n in (1, 2, 4)
    ]
    assert draw(served, tmp_path / "plot.svg")
    assert {"0", "400"} <= {text.strip() for text in drawn_texts(tmp_path / "plot.svg").splitlines()}


def test_a_file_that_cannot_be_is_refused_before_anything_is_measured(tmp_path: Path, tiny_model: Path) -> None:
    taken = tmp_path / "taken.png"
    taken.write_bytes(b"mine")
    for path, said in ((tmp_path / "a.pdf", "neither"), (taken, "already"), (tmp_path / "no/a.png", "no folder")):
        with pytest.raises(UsageError, match=said):
            check_plot(path, replace=False)
    check_plot(taken, replace=True)
    llmrun("bench", tiny_model, "--plot", taken).failed(2, "already")
    assert taken.read_bytes() == b"mine"
