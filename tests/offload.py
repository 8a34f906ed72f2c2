"""Offload, with llama.cpp's RPC backend standing in for a GPU: run by scripts/test-offload, in a build that has it.

To llama.cpp such a device is a GPU with memory of its own, so placement, fitting and refusal are the same.
"""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmrun.engine import capi
from llmrun.engine.context import Context, ContextSettings
from llmrun.engine.device_memory import device_bandwidth
from llmrun.engine.model import Model, ModelSettings
from llmrun.errors import DoesNotFitError
from llmrun.gguf.header import open_header
from llmrun.gguf.info import model_info
from llmrun.machine.inventory import Machine
from llmrun.plan.fit import budget_bytes
from llmrun.plan.make import Plan
from llmrun.prepare.planning import Planner, model_settings, this_machine
from llmrun.prepare.settings import ContextWish, Room
from tests.cli import LLMRUN, environment, llmrun
from tests.tiny import tiny_gguf

MIB = 1 << 20
GREEDY = ("--temp", 0, "--seed", 1, "-t", 1)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start_worker(port: int) -> "subprocess.Popen[str]":
    worker = subprocess.Popen(
        [*LLMRUN, "rpc-worker", "--port", str(port), "-t", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    assert worker.stderr is not None
    said = []
    for line in worker.stderr:
        said.append(line)
        if line.startswith("listening on"):
            return worker
    raise AssertionError(said)


@contextmanager
def running_worker() -> Iterator[str]:
    """The address of a worker, which serves one program after the other."""
    port = free_port()
    process = start_worker(port)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def worker() -> Iterator[str]:
    with running_worker() as address:
        yield address


@pytest.fixture(scope="module")
def own_worker() -> Iterator[str]:
    """One for the tests in this process, which stays connected once it has used it."""
    with running_worker() as address:
        yield address


@pytest.fixture(scope="module")
def machine(own_worker: str) -> Machine:
    return this_machine([own_worker])


def with_free(machine: Machine, free_bytes: int) -> Machine:
    """The machine with an artificially small device."""
    devices = tuple(d._replace(free_bytes=free_bytes) if d.is_worker else d for d in machine.devices)
    return machine._replace(devices=devices)


def planner(path: Path, machine: Machine, **wish: Any) -> Planner:
    header = open_header(path)
    return Planner(model_info(header), [header], ContextWish(**wish), machine)


def log_of(path: Path, plan: Plan) -> tuple[Model, dict[str, float]]:
    """Load as planned, make the context, and read what the log says of both: MiB by buffer."""
    model = Model.load(path, model_settings(ModelSettings(), plan))
    text = "".join(line for _, line in capi.log.lines)
    settings = ContextSettings(
        plan.n_ctx, plan.n_batch, plan.n_ubatch, kv_type=plan.kv_type, kv_on_cpu=plan.kv_on_cpu
    )
    with Context(model, settings):
        text += "".join(line for _, line in capi.log.lines)
    found: dict[str, float] = {}
    for name, kind, size in re.findall(r"(\S+) +(model|KV|compute) buffer size = +([\d.]+) MiB", text):
        key = f"{name.partition('[')[0]} {kind}"  # RPC0[127.0.0.1:50052]
        found[key] = found.get(key, 0.0) + float(size)
    return model, found


def test_the_device_is_listed_with_its_memory(machine: Machine) -> None:
    (device,) = [device for device in machine.devices if device.is_worker]
    assert (device.name, device.kind) == ("RPC0", "gpu")
    assert 0 < device.free_bytes <= device.total_bytes


def test_the_device_s_memory_is_timed(machine: Machine) -> None:
    (device,) = [device.name for device in machine.devices if device.is_worker]
    assert 1e8 < device_bandwidth(device) < 1e13


@pytest.mark.parametrize("layers", [0, 15, "all"])
def test_layers_go_where_they_are_sent(smollm2: Path, worker: str, layers: int | str) -> None:
    result = llmrun("run", smollm2, "Count: one two", "--raw", "-n", 8, "-c", 512, "--rpc", worker, "-g", layers,
                    *GREEDY, "--json", "-v")  # fmt: skip
    assert result.status == 0, result.err
    wanted = {0: 0, 15: 15, "all": 31}[layers]
    assert json.loads(result.text)["settings"]["gpu_layers"] == wanted
    assert f"offloaded {wanted}/31 layers to GPU" in result.err
    if wanted:
        assert f"{wanted}/31 layers on RPC0 (" in result.err


def test_greedy_text_is_the_same_up_to_rounding(smollm2: Path, worker: str) -> None:
    """The worker computes on this machine's CPU, so that even the rounding is nearly the same."""
    args = ("run", smollm2, "The capital of France is", "--raw", "-n", 16, "-c", 512, *GREEDY)
    texts = [llmrun(*args, "--rpc", worker, "-g", layers).text for layers in (0, 15, "all")]
    assert texts[0] and [text[:20] for text in texts] == [texts[0][:20]] * 3


def test_sizes_on_the_device_are_those_planned(smollm2: Path, machine: Machine) -> None:
    for layers in (15, 31):
        plan = planner(smollm2, machine, gpu_layers=layers, n_ctx=4096).first(Room(4096, 4096))
        model, log = log_of(smollm2, plan)
        model.close()
        assert model.placed.layers == layers
        host, device = plan.uses
        assert device.kv_bytes / MIB == pytest.approx(log["RPC0 KV"], abs=0.02)
        assert device.weights_bytes / MIB == pytest.approx(log["RPC0 model"], abs=0.02)
        assert device.compute_bytes / MIB == pytest.approx(log["RPC0 compute"], rel=0.15)
        assert host.kv_bytes / MIB == pytest.approx(log.get("CPU KV", 0.0), abs=0.02)


def test_auto_fits_into_an_artificially_small_memory(smollm2: Path, machine: Machine) -> None:
    for free_mib in (60, 100, 400):
        small = with_free(machine, free_mib * MIB)
        plan = planner(smollm2, small).first(Room(4096, 4096))
        model, log = log_of(smollm2, plan)
        model.close()
        used = sum(size for name, size in log.items() if name.startswith("RPC0"))
        assert 0 < used * MIB <= budget_bytes(free_mib * MIB)
        assert model.placed.layers == plan.gpu_layers
        assert bool(plan.left_behind) == (plan.gpu_layers < 31)


def test_what_does_not_fit_is_refused_beforehand(smollm2: Path, machine: Machine) -> None:
    with pytest.raises(DoesNotFitError, match="on RPC0"):
        planner(smollm2, with_free(machine, 60 * MIB), gpu_layers=-1).first(Room(4096, 4096))
    with pytest.raises(DoesNotFitError, match="--require-gpu"):
        planner(smollm2, with_free(machine, 60 * MIB), require_gpu=True).first(Room(4096, 4096))


def test_the_cache_stays_on_the_cpu_when_asked(smollm2: Path, machine: Machine) -> None:
    plan = planner(smollm2, machine, gpu_layers=-1, kv_on_cpu=True).first(Room(2048, 2048))
    model, log = log_of(smollm2, plan)
    model.close()
    assert plan.uses[1].kv_bytes == 0 and "RPC0 KV" not in log
    assert plan.uses[0].kv_bytes / MIB == pytest.approx(log["CPU KV"], abs=0.02)


def test_experts_stay_on_the_cpu_before_layers_do(tmp_path: Path, machine: Machine) -> None:
    path = tiny_gguf(tmp_path / "moe.gguf", n_layer=6, n_embd=256, n_ff=1024, n_expert=8)
    whole = planner(path, machine).first(Room(512, 512)).uses[1].needed_bytes
    for share, some in ((2.0, 0), (0.7, 3), (0.0, 6)):
        asked = {"cpu_moe": True} if not share else {}
        on = machine if not share else with_free(machine, int(whole * share))
        plan = planner(path, on, **asked).first(Room(512, 512))
        assert plan.gpu_layers == 7
        assert (plan.cpu_expert_layers > 0) == (some > 0)
        model, log = log_of(path, plan)
        model.close()
        assert plan.uses[1].weights_bytes / MIB == pytest.approx(log["RPC0 model"], abs=0.02)


def test_an_absent_worker_is_one_error(smollm2: Path) -> None:
    llmrun("run", smollm2, "hi", "--rpc", f"127.0.0.1:{free_port()}").failed(1, "no RPC worker answers", "rpc-worker")


def test_a_port_that_is_taken_is_one_error(worker: str) -> None:
    port = worker.rpartition(":")[2]
    result = llmrun("rpc-worker", "--port", port)
    assert result.status == 1 and "cannot listen" in result.err and result.out == b""


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_ends_a_worker() -> None:
    process = start_worker(free_port())
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert out == "" and err == "interrupted\n"


def test_plan_and_doctor_show_the_worker(smollm2: Path, worker: str) -> None:
    found = json.loads(llmrun("plan", smollm2, "--rpc", worker, "--json", "-c", 4096, "--kv-type", "f16").text)
    assert found["rows"][0]["layers"] == [{"name": "RPC0", "layers": 31}]
    assert "RPC" in json.loads(llmrun("doctor", "--json").text)["software"]["backends"]
