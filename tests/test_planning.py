"""How a run's memory is planned, and what is said of it: the joins between plan, machine and engine."""

import subprocess
import sys
from pathlib import Path

import pytest

from llmrun.engine import capi
from llmrun.engine.offload import Placed, add_workers, parse_endpoints, placed
from llmrun.errors import DoesNotFitError, EngineError, UsageError
from llmrun.gguf.header import open_header
from llmrun.gguf.info import model_info
from llmrun.machine.cores import count_cores
from llmrun.machine.devices import Device
from llmrun.machine.gpus import Gpu
from llmrun.machine.inventory import Machine
from llmrun.machine.memory import Memory
from llmrun.prepare.planning import Planner, check_gpu, load_line, unused_gpus
from llmrun.prepare.settings import ContextWish, Room, room_for_text
from llmrun.report import Quiet
from tests.cli import LLMRUN, environment, llmrun

GB = 1_000_000_000
CORES = count_cores([frozenset({0})], [frozenset({0})], frozenset(), None)
CUDA = Device("CUDA0", "NVIDIA RTX 4090", "gpu", 24 * GB, 20 * GB)
RTX = Gpu("nvidia", "NVIDIA RTX 4090", reachable=True, strong=True)


def machine(*devices: Device, gpus: tuple[Gpu, ...] = ()) -> Machine:
    return Machine("a CPU", CORES, Memory(64 * GB, 64 * GB, None, "", 64 * GB), devices, gpus)


def planner(path: Path, on: Machine, **wish: object) -> Planner:
    header = open_header(path)
    return Planner(model_info(header), [header], ContextWish(**wish), on)  # type: ignore[arg-type]


def test_load_line_says_where_the_layers_are(tiny_model: Path) -> None:
    plan = planner(tiny_model, machine(CUDA)).first(Room(512, 512))
    line = load_line(
        plan._replace(uses=(plan.uses[0], plan.uses[1]._replace(weights_bytes=5 * GB))), Placed(3, 3, ())
    )
    assert line == "3/3 layers on CUDA0 (5.0 of 24 GB), KV on CUDA0"
    assert load_line(plan, Placed(2, 3, ())).endswith("; 3 were planned")


def test_what_llama_cpp_did_is_read_from_its_log() -> None:
    log = [
        "load_tensors: offloading output layer to GPU\n",
        "load_tensors: offloaded 15/31 layers to GPU\n",
        "load_tensors:   CPU_Mapped model buffer size =    92.10 MiB\n",
        "load_tensors: RPC0[127.0.0.1:50052] model buffer size =    40.50 MiB\n",
    ]
    assert placed(log) == Placed(15, 31, (("CPU_Mapped", 96573850), ("RPC0[127.0.0.1:50052]", 42467328)))
    assert placed([]) == Placed(0, 0, ())


def test_the_context_is_settled_with_the_layers_where_they_are(tiny_model: Path) -> None:
    asked = planner(tiny_model, machine(CUDA))
    first = asked.first(Room(2048, 512))
    assert (first.gpu_layers, first.n_ctx) == (3, 2048)
    settled = asked.again(first, Room(512, 256), ContextWish())
    assert (settled.gpu_layers, settled.n_ctx) == (3, 512)
    cpu = planner(tiny_model, machine(CUDA), gpu_layers=0)
    assert cpu.again(cpu.first(Room(2048, 512)), Room(512, 256), ContextWish()).gpu_layers == 0


def test_a_gpu_that_the_build_cannot_use_is_said_with_what_mends_it(tiny_model: Path) -> None:
    found = unused_gpus(machine(gpus=(RTX,)))[0]
    assert found.reason == "NVIDIA RTX 4090 is in this machine, but this build of llama.cpp has no CUDA backend"
    assert "-DGGML_CUDA=on" in found.remedy
    unplugged = unused_gpus(machine(gpus=(RTX._replace(reachable=False),)))[0]
    assert "--gpus all" in unplugged.remedy
    assert unused_gpus(machine(CUDA, gpus=(RTX,))) == ()
    weak = Gpu("intel", "Intel GPU", reachable=True, strong=False)
    assert unused_gpus(machine(gpus=(weak,))) == ()
    assert len(unused_gpus(machine(gpus=(weak,)), all_of_them=True)) == 1
    for wish, notes in ((None, 1), (0, 0)):
        asked, report = planner(tiny_model, machine(gpus=(RTX,)), gpu_layers=wish), Quiet()
        asked.report(asked.first(Room(512, 512)), Placed(0, 0, ()), report)
        assert len(report.notes) == notes


def test_a_required_gpu_is_refused_with_the_reason(tiny_model: Path) -> None:
    check_gpu(planner(tiny_model, machine(CUDA)).first(Room(512, 512)), machine(CUDA))
    small = CUDA._replace(free_bytes=1_000_000)
    for on, reason in (
        (machine(), "finds no GPU"),
        (machine(gpus=(RTX,)), "no CUDA backend"),
        (machine(small), "3 of 3 layers stay on the CPU: 1.0 MB is free on CUDA0"),
    ):
        with pytest.raises(DoesNotFitError, match=reason):
            planner(tiny_model, on, require_gpu=True).first(Room(512, 512))
    with pytest.raises(DoesNotFitError, match="2 of 3 layers are kept on the CPU"):
        planner(tiny_model, machine(CUDA), require_gpu=True, gpu_layers=1).first(Room(512, 512))


def test_endpoints_of_rpc_workers() -> None:
    assert parse_endpoints("pi:7000, 10.0.0.2") == ("pi:7000", "10.0.0.2:50052")
    for text in ("pi:", ":7000", "pi:0", "pi:70000", "pi:ten"):
        with pytest.raises(UsageError):
            parse_endpoints(text)


def test_a_build_without_rpc_names_the_line_that_brings_it() -> None:
    add_workers(())
    hint = "llmrun rpc-worker" if "RPC" in capi.backends() else "-DGGML_RPC=on"
    with pytest.raises(EngineError) as refusal:
        add_workers(["127.0.0.1:1"])
    assert hint in refusal.value.hint


def test_room_is_rather_too_much_than_too_little() -> None:
    """A token covers a byte at least."""
    assert room_for_text(100, 50).n_ctx == 512
    assert room_for_text(4000, 10).n_ctx >= 4000
    assert room_for_text(10, None).n_ctx > 4096
    assert room_for_text(1_000_000, None).n_ctx_min == 512


def limited(n_bytes: int, *args: object) -> "subprocess.CompletedProcess[str]":
    """`llmrun ARGS` under `ulimit -v`."""
    code = f"import resource, os, sys; resource.setrlimit(resource.RLIMIT_AS, ({n_bytes}, {n_bytes})); "
    code += "os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", code, *LLMRUN, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is enforced on Linux")
def test_mem_01_a_context_that_cannot_be_is_refused_before_loading(smollm2: Path) -> None:
    """MEM-01"""
    done = limited(6_144_000_000, "run", smollm2, "hi", "--ctx", 1048576)
    assert done.returncode == 2
    assert "error: this model was trained for 8192 tokens of context" in done.stderr
    stretched = ("--rope-scaling", "yarn", "--rope-scale", 128)
    done = limited(6_144_000_000, "run", smollm2, "hi", "--ctx", 1048576, *stretched)
    assert done.returncode == 1 and done.stdout == ""
    assert "needs 13 GB on CPU" in done.stderr and "(ulimit -v 6.1 GB)" in done.stderr
    assert "hint: what fits: -c " in done.stderr


def test_mem_01_a_default_context_is_made_to_fit(smollm2: Path) -> None:
    """MEM-01"""
    few = machine()._replace(memory=Memory(64 * GB, 150_000_000, None, "", 150_000_000))
    asked = planner(smollm2, few)
    first = asked.first(room_for_text(20, None))
    assert 512 <= first.n_ctx < 4096 and first.kv_type == ("q8_0", "q8_0")
    assert first.total_bytes < 150_000_000
    settled = asked.again(first, Room(4352, 256), ContextWish())
    assert f"context of {settled.n_ctx} tokens: 4352 do not fit" in settled.notes


def test_context_past_training_with_rope_scaling_runs(tiny_model: Path) -> None:
    args = ("run", tiny_model, "hi", "-n", 2, "--temp", 0, "--seed", 1, "-c", 4096)
    llmrun(*args).failed(2, "trained for 2048 tokens", "--rope-scale 2")
    for scaling in ("none", "linear", "yarn"):
        assert llmrun(*args, "--rope-scaling", scaling, "--rope-scale", 2).status == 0
    llmrun(*args, "--rope-scaling", "linear").failed(2, "--rope-scale")
    llmrun(*args, "--rope-scale", 2).failed(2, "--rope-scaling")
    llmrun(*args, "--rope-scaling", "linear", "--rope-scale", 1.5).failed(2, "--rope-scale 2")


def test_devices_and_layers_that_cannot_be_are_usage_errors(tiny_model: Path) -> None:
    llmrun("run", tiny_model, "hi", "--device", "CUDA9").failed(2, "no device CUDA9")
    llmrun("run", tiny_model, "hi", "-g", "-3").failed(2, "--gpu-layers -3")
    llmrun("run", tiny_model, "hi", "-g", "lots").failed(2, "--gpu-layers lots")
    llmrun("run", tiny_model, "hi", "--rpc", "nowhere:").failed(2, "--rpc nowhere:")
    assert llmrun("run", tiny_model, "hi", "-n", 2, "-g", 0, "--device", "none").status == 0


def test_a_worker_needs_a_build_with_rpc() -> None:
    llmrun("rpc-worker", "--port", 0).failed(2, "--port 0")
    llmrun("rpc-worker", "-t", 0).failed(2, "--threads 0")
    if "RPC" not in capi.backends():
        llmrun("rpc-worker").failed(1, "no RPC backend", "-DGGML_RPC=on")
