"""`llmrun bench` as a user runs it, on tiny models."""

import csv
import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmrun import __version__
from llmrun.bench.grid import Setting
from llmrun.cli.benching.flow import start_command
from llmrun.engine.model import ModelSettings
from llmrun.prepare.subject import OpenSubject
from llmrun.report import Quiet
from tests.cli import LLMRUN, environment, llmrun, on_terminal
from tests.tiny import tiny_gguf

SMALL = ("-p", "16", "-n", "4", "-t", "1")  # two threads on busy cores wait for each other


def test_json_holds_every_sample_and_what_made_it(tiny_model: Path) -> None:
    """BEN-04: at least 5 repeats, median and spread, every sample, threads, the model's hash, the version."""
    import hashlib

    done = llmrun("bench", tiny_model, *SMALL, "--json")
    assert done.status == 0, done
    found = json.loads(done.text)
    assert [row["test"] for row in found["rows"]] == ["pp16", "tg4"]
    for row in found["rows"]:
        assert 5 <= len(row["samples_tps"]) <= 15
        assert min(row["samples_tps"]) <= row["median_tps"] <= max(row["samples_tps"])
        assert row["sd_tps"] >= 0
        assert row["threads"] == found["threads"]["n"]
        assert row["sha256"] == hashlib.sha256(tiny_model.read_bytes()).hexdigest()
        assert row["bandwidth_bytes_per_s"] > 0
    assert found["build"]["llmrun"] == __version__
    assert found["machine"]["bandwidth_bytes_per_s"] > 0


def test_threads_are_shown_with_the_reason(tiny_model: Path) -> None:
    """BEN-01: the number and the reason are shown in bench; --threads wins."""
    done = llmrun("bench", tiny_model, "-p", "16", "-n", "0", "-r", "1")
    line = next(line for line in done.err.splitlines() if line.startswith("threads: "))
    assert int(line.split()[1]) >= 1
    assert "(" in line
    given = llmrun("bench", tiny_model, *SMALL, "-r", "1")
    assert "threads: 1 (--threads)" in given.err
    assert any(line.split()[:1] == ["tiny"] for line in given.text.splitlines())


def test_lists_make_a_cross_product_over_models(tmp_path: Path) -> None:
    a, b = tiny_gguf(tmp_path / "a.gguf"), tiny_gguf(tmp_path / "b.gguf", seed=1)
    done = llmrun("bench", a, "-m", b, "-p", "8-16*2", "-n", "0", "-t", "1,2", "-r", "1", "-o", "jsonl")
    assert done.status == 0, done
    rows = [json.loads(line) for line in done.text.splitlines()]
    assert [(row["model"], row["threads"], row["test"]) for row in rows] == [
        (model, threads, test) for model in ("b", "a") for threads in (1, 2) for test in ("pp8", "pp16")
    ]


def test_cache_types_are_lists_for_keys_and_for_values(tiny_model: Path) -> None:
    types = ("-ctk", "f16,bf16", "-ctv", "bf16")
    done = llmrun("bench", tiny_model, "-p", "8", "-n", "0", "-t", "1", "-r", "1", *types, "-o", "jsonl")
    assert done.status == 0, done
    assert [json.loads(line)["kv_type"] for line in done.text.splitlines()] == ["f16/bf16", "bf16"]


def test_csv_and_markdown_are_whole(tiny_model: Path) -> None:
    done = llmrun("bench", tiny_model, *SMALL, "-r", "2", "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(done.text)))
    assert [row["test"] for row in rows] == ["pp16", "tg4"]
    assert float(rows[0]["mean_tps"]) > 0
    done = llmrun("bench", tiny_model, "--pg", "8,4", "-d", "16", *SMALL, "-r", "2", "-o", "md")
    lines = [line for line in done.text.splitlines() if line]
    assert len(lines) == 2 + 3
    assert len({line.count("|") for line in lines}) == 1
    assert "pp8+tg4 @ d16" in lines[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-p", "16,4000"), ("4000 tokens of context", "trained for 2048")),
        (("-n", "x"), ("-n x",)),
        (("-p", "0", "-n", "0"), ("no test",)),
        (("-o", "xml"), ("--format xml",)),
        (("--kv-type", "q9"), ("--kv-type",)),
        (("-ctk", "f16,q9"), ("-ctk has no 'q9'",)),
        (("-fa", "off", "--kv-type", "q8_0"), ("flash attention",)),
    ],
)
def test_bad_tests_are_refused_before_anything_runs(
    tiny_model: Path, arguments: tuple[str, ...], said: tuple[str, ...]
) -> None:
    llmrun("bench", tiny_model, "-o", "jsonl", *arguments).failed(2, *said)


def test_no_model_an_unknown_one_and_an_embedding_model_are_refused(tmp_path: Path) -> None:
    llmrun("bench", *SMALL).failed(2, "no model")
    llmrun("bench", tmp_path / "no.gguf", *SMALL).failed(1, "no.gguf")
    llmrun("bench", tiny_gguf(tmp_path / "bert.gguf", arch="bert"), *SMALL).failed(1, "embedding")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no SIGINT to one process")
def test_ctrl_c_prints_the_rows_that_are_finished(tiny_model: Path) -> None:
    command = [*LLMRUN, "bench", str(tiny_model), "-p", "16", "-n", "4,2000", "-r", "100"]
    command += ["-t", "1", "-o", "jsonl"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=30)
    assert json.loads(first)["test"] == "pp16"
    assert process.returncode == 130
    assert b"Traceback" not in said
    assert b"interrupted: 2 tests were finished" in said
    assert rest == b""


def test_latency_and_concurrency_rows(tiny_model: Path) -> None:
    shape = ("-p", "16", "-n", "4", "-r", "2", "-t", "1")
    done = llmrun("bench", tiny_model, "--latency", "--concurrency", "1,2", *shape, "--json")
    assert done.status == 0, done
    found = json.loads(done.text)
    kinds = [(row["kind"], row["test"], row["concurrency"]) for row in found["rows"]]
    assert kinds == [
        ("latency", "run 16+4", 1),
        ("concurrency", "serve 16+4", 1),
        ("concurrency", "serve 16+4", 2),
        ("start", "cold start", 1),
    ]
    assert all(row["ttft_p50_s"] > 0 for row in found["rows"])
    assert any("streams" in note for note in found["notes"])


def test_a_cold_start_has_the_settings_of_the_other_rows(tiny_model: Path) -> None:
    """The flags of the command are those that `run` is then asked for, one by one."""
    settings = (
        "-ctk",
        "bf16",
        "-ctv",
        "f16",
        "-fa",
        "on",
        "-b",
        "64",
        "-ub",
        "32",
        "-t",
        "1",
        "-g",
        "0",
        "--no-mmap",
    )
    subject = OpenSubject(str(tiny_model), Quiet(), ModelSettings(mmap=False))
    command = start_command(subject, Setting(1, 64, 32, 0, ("bf16", "f16"), "on"))
    wanted = {"-t": "1", "-g": "0", "-fa": "on", "-b": "64", "-ub": "32", "--kv-type": "bf16,f16"}
    assert {flag: command[command.index(flag) + 1] for flag in wanted} == wanted
    assert "--no-mmap" in command
    said = llmrun(*command[3:], "--json")
    assert said.status == 0, said
    found = json.loads(said.text)["settings"]
    assert (found["kv_type"], found["threads"], found["batch"], found["ubatch"]) == ("bf16,f16", 1, 64, 32)
    done = llmrun("bench", tiny_model, "--latency", "-p", "16", "-n", "4", "-r", "1", *settings, "--json")
    assert done.status == 0, done
    rows = json.loads(done.text)["rows"]
    assert [(row["kind"], row["kv_type"], row["flash_attn"]) for row in rows] == [
        ("latency", "bf16/f16", "on"),
        ("start", "bf16/f16", "on"),
    ]


def test_streams_and_prefixes_that_cannot_be_are_refused(tiny_model: Path) -> None:
    llmrun("bench", tiny_model, "--concurrency", "0").failed(2, "--concurrency 0")
    llmrun("bench", tiny_model, "--concurrency", "1", "-p", "8", "--shared-prefix", "8").failed(2, "--shared-prefix")
    llmrun("bench", tiny_model, "--concurrency", "1", "-p", "2000", "-n", "100").failed(2, "2100 tokens")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_a_terminal_shows_which_test_runs_and_keeps_nothing_of_it(tiny_model: Path) -> None:
    seen = on_terminal("bench", tiny_model, *SMALL, "-r", "2")
    for line in ("tiny pp16 (1 of 2 tests) ...", "tiny tg4 (2 of 2 tests) ..."):
        assert f"\r\x1b[K{line}\r\x1b[K" in seen
    assert "tests) ..." not in llmrun("bench", tiny_model, *SMALL, "-r", "2").err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_a_narrow_terminal_cuts_no_cell_of_the_table(tiny_model: Path) -> None:
    seen = on_terminal("bench", tiny_model, *SMALL, "-r", "2", env={"COLUMNS": "40", "NO_COLOR": "1"})
    (header,) = (line for line in seen.splitlines() if "MODEL" in line)
    assert " ".join(header.split()) == ("MODEL SIZE PARAMS BACKEND THREADS TEST T/S MEDIAN GB/S OF MEMORY BOUND BY")
