"""`llmrun plan` as a user meets it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrun.machine.bandwidth import Bandwidth, keep
from llmrun.machine.cores import cpu_name, read_cores
from llmrun.machine.memory import read_memory
from tests.cli import llmrun
from tests.hub_server import Hub
from tests.tiny import tiny_gguf


@pytest.fixture(autouse=True)
def known_bandwidth(home: Path) -> None:
    """20 GB/s, so that nothing is measured."""
    machine = f"{cpu_name()} | {read_cores().usable} cores | {round(read_memory().total_bytes / 1e9)} GB"
    keep(machine, Bandwidth(20e9, 0.0))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub() as hub:
        files = {}
        for quant in ("F16", "Q8_0", "Q4_0"):
            path = tiny_gguf(tmp_path / f"m-{quant}.gguf", n_embd=256, n_vocab=2048, qtype=quant)
            files[path.name] = path.read_bytes()
        hub.add("mock/tiny-GGUF", files)
        yield hub


def test_table_over_contexts_and_cache_types(tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path / "m.gguf", n_head=2, n_head_kv=1, n_ctx_train=16384)
    result = llmrun("plan", model)
    assert result.status == 0, result.err
    lines = result.text.splitlines()
    assert "trained for 16384 tokens" in lines[0] and "not here" not in lines[0]
    assert lines[1].startswith("CPU: ") and "reads 20 GB/s" in lines[1]
    rows = [line.split() for line in lines if line.strip()[:1].isdigit()]
    assert [(row[0], row[1]) for row in rows] == [
        (n_ctx, kv_type) for n_ctx in ("4096", "8192", "16384") for kv_type in ("f16", "q8_0", "q4_0")
    ]
    assert all("yes" in row and "tok/s" in row for row in rows)
    assert "longest context that fits: 16384 with f16, 16384 with q8_0, 16384 with q4_0" in result.text
    assert "an upper bound" in result.text
    assert "\x1b" not in result.text


def test_json_is_the_whole_forecast(tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path / "m.gguf", n_ctx_train=16384)
    found = json.loads(llmrun("plan", model, "--json", "-c", 4096, "--kv-type", "f16").text)
    assert set(found) == {"model", "machine", "bandwidth", "rows", "longest_contexts", "quants"}
    assert found["model"]["n_ctx_train"] == 16384 and found["model"]["is_here"]
    assert found["bandwidth"]["bytes_per_s"] == 20e9
    (row,) = found["rows"]
    assert row["n_ctx"] == 4096 and row["kv_type"] == ["f16", "f16"] and row["fits"]
    # 2 layers of 2 heads of 16, keys and values, 2 bytes each
    assert row["kv_bytes"] == 4096 * 2 * 2 * 16 * 2 * 2
    assert row["total_bytes"] == row["weights_bytes"] + row["kv_bytes"] + row["compute_bytes"]
    assert row["layers"] == [{"name": "CPU", "layers": 3}]
    # all weights but the embedding of one token, and the whole cache, for each token
    assert row["decode_tps_at_most"] == pytest.approx(20e9 / (row["weights_bytes"] + row["kv_bytes"]), rel=0.25)
    assert found["machine"]["memory"]["free_bytes"] > 0


def test_a_remote_repo_is_planned_from_its_header_and_its_quants_are_compared(hub: Hub) -> None:
    result = llmrun("plan", "mock/tiny-GGUF:Q8_0", "--json", env={"HF_ENDPOINT": hub.url})
    assert result.status == 0, result.err
    found = json.loads(result.text)
    assert not found["model"]["is_here"] and found["model"]["quant"] == "Q8_0"
    assert [quant["quant"] for quant in found["quants"]] == ["Q4_0", "Q8_0", "F16"]
    assert [quant["best"] for quant in found["quants"]] == [False, True, False], "F16 fits, but is not quantized"
    sizes = [quant["row"]["weights_bytes"] for quant in found["quants"]]
    assert sizes == sorted(sizes)
    assert len([r for r in hub.log if "Q4_0" in r.path or "F16" in r.path]) == 0, "only one header was read"
    text = llmrun("plan", "mock/tiny-GGUF:Q8_0", env={"HF_ENDPOINT": hub.url}).text
    assert "not here yet" in text and "best that fits" in text


def test_the_scaled_weights_of_a_quant_are_near_its_own(hub: Hub, tmp_path: Path) -> None:
    found = json.loads(llmrun("plan", "mock/tiny-GGUF:Q8_0", "--json", env={"HF_ENDPOINT": hub.url}).text)
    scaled = {quant["quant"]: quant["row"]["weights_bytes"] for quant in found["quants"]}
    for quant in ("Q4_0", "F16"):
        path = tiny_gguf(tmp_path / f"{quant}.gguf", n_embd=256, n_vocab=2048, qtype=quant)
        own = json.loads(llmrun("plan", path, "--json", "-c", 512).text)["rows"][0]["weights_bytes"]
        assert scaled[quant] == pytest.approx(own, rel=0.1)


def test_what_cannot_be_is_refused(tiny_model: Path) -> None:
    llmrun("plan", "no-such-model").failed(1, "no model is called")
    llmrun("plan", tiny_model, "-c", 4096).failed(2, "trained for 2048 tokens")
    llmrun("plan", tiny_model, "--kv-type", "q9").failed(2, "--kv-type")
    llmrun("plan", tiny_model, "--device", "CUDA9").failed(2, "no device CUDA9")
    llmrun("plan").failed(2)
