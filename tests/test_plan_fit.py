from pathlib import Path
from typing import Any

import pytest

from llmrun.errors import DoesNotFitError, UsageError
from llmrun.gguf.header import Header, TensorInfo, open_header
from llmrun.gguf.info import ModelInfo, model_info
from llmrun.gguf.types import TENSOR_TYPES
from llmrun.machine.cores import count_cores
from llmrun.machine.devices import Device, DeviceKind
from llmrun.machine.inventory import Machine
from llmrun.machine.memory import Memory
from llmrun.plan.fit import budget_bytes
from llmrun.plan.make import Plan, make_plan
from llmrun.plan.wish import ALL_LAYERS, Wish
from tests.tiny import tiny_gguf

GB = 1_000_000_000
CORES = count_cores([frozenset({0})], [frozenset({0})], frozenset(), None)


def machine(ram: int, *devices: Device, limit: int | None = None) -> Machine:
    memory = Memory(ram, ram, limit, "container limit" if limit else "", limit or ram)
    return Machine("a CPU", CORES, memory, devices)


def device(name: str, n_bytes: int, kind: DeviceKind = "gpu") -> Device:
    return Device(name, name, kind, n_bytes, n_bytes)


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> Header:
    """The header of a tiny llama; `scaled` makes a large model's of it."""
    path = tmp_path_factory.mktemp("plan") / "tiny.gguf"
    return open_header(tiny_gguf(path, n_layer=8, n_embd=256, n_head=4, n_head_kv=2, n_ctx_train=131072))


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Header:
    path = tmp_path_factory.mktemp("plan") / "experts.gguf"
    return open_header(tiny_gguf(path, n_layer=8, n_embd=256, n_head=4, n_head_kv=2, n_expert=8, n_ctx_train=131072))


def scaled(header: Header, times: int) -> tuple[TensorInfo, ...]:
    """The tensors of the header, each `times` as large: 8 layers of 8 * times MB or so."""
    return tuple(tensor._replace(n_bytes=tensor.n_bytes * times) for tensor in header.tensors)


def plan(header: Header, on: Machine, times: int = 130, **wish: Any) -> Plan:
    return make_plan(model_info(header), scaled(header, times), on, Wish(**wish))


def test_everything_fits_a_large_machine(header: Header) -> None:
    found = plan(header, machine(64 * GB), n_ctx=4096)
    assert (found.n_ctx, found.kv_type, found.n_ubatch) == (4096, ("f16", "f16"), 512)
    assert (found.gpu_layers, found.n_slots, found.notes) == (0, 9, ())
    assert found.weights_bytes + found.kv_bytes + found.compute_bytes == found.uses[0].needed_bytes
    # 8 layers of 2 heads of 64, keys and values, 2 bytes each
    assert found.kv_bytes == 8 * 4096 * 2 * 64 * 2 * 2


def test_mem_01_the_default_context_is_bounded_by_memory(header: Header) -> None:
    """A model trained for 131072 tokens on a small machine."""
    whole = plan(header, machine(64 * GB)).uses[0].needed_bytes
    found = plan(header, machine(whole), n_ctx_min=256)
    assert found.uses[0].needed_bytes <= budget_bytes(whole)
    assert found.notes
    few = int(whole * 0.8)
    small = plan(header, machine(few), n_ctx_min=256)
    assert 256 <= small.n_ctx < 131072
    assert f"context of {small.n_ctx} tokens: 131072 do not fit" in small.notes
    assert small.uses[0].needed_bytes <= budget_bytes(few)


def test_mem_01_an_explicit_size_fails_with_needed_free_and_what_fits(header: Header) -> None:
    """MEM-01"""
    with pytest.raises(DoesNotFitError) as refusal:
        plan(header, machine(1_800_000_000), n_ctx=131072, kv_type=("f16", "f16"))
    message, hint = refusal.value.message, refusal.value.hint
    assert "a context of 131072 tokens needs 1.9 GB on CPU" in message
    assert "1.8 GB is free and 1.6 GB may be used" in message
    assert "weights 1.3 GB" in message and "KV cache 537 MB" in message
    assert hint == "what fits: -c 73216, or --kv-type q8_0"
    assert plan(header, machine(1_800_000_000), n_ctx=73216, kv_type=("f16", "f16")).n_ctx == 73216
    with pytest.raises(DoesNotFitError):
        plan(header, machine(1_800_000_000), n_ctx=73216 + 256, kv_type=("f16", "f16"))


def test_mem_03_the_message_names_the_container_limit(header: Header) -> None:
    """MEM-03"""
    with pytest.raises(DoesNotFitError) as refusal:
        plan(header, machine(64 * GB, limit=1_073_741_824), n_ctx=4096)
    assert refusal.value.message.endswith("(container limit 1.1 GB)")
    assert "take a smaller model or quantization: weights of up to" in refusal.value.hint


def test_no_memory_at_all_is_said_plainly(header: Header) -> None:
    with pytest.raises(DoesNotFitError) as refusal:
        plan(header, machine(1_000_000), n_ctx=4096)
    assert refusal.value.hint == "free some memory first: other programs hold it"


def test_a_context_past_training_needs_a_rope_scaling(header: Header) -> None:
    with pytest.raises(UsageError, match="trained for 131072 tokens") as refusal:
        plan(header, machine(64 * GB), n_ctx=200_000)
    assert "--rope-scaling yarn --rope-scale 2" in refusal.value.hint
    stretched = plan(header, machine(64 * GB), n_ctx=200_000, rope_scaling="yarn", rope_scale=2.0)
    assert stretched.n_ctx == 200_000
    assert plan(header, machine(64 * GB), rope_scaling="linear", rope_scale=2.0).n_ctx == 262_144
    for wish in (
        {"n_ctx": 300_000, "rope_scaling": "yarn", "rope_scale": 2.0},
        {"rope_scaling": "yarn"},
        {"rope_scaling": "yarn", "rope_scale": 0.5},
        {"rope_scaling": "yarn", "rope_scale": float("nan")},
        {"rope_scaling": "dynamic", "rope_scale": 2.0},
        {"rope_scale": 2.0},
    ):
        with pytest.raises(UsageError):
            plan(header, machine(64 * GB), **wish)


def test_cache_types_that_the_model_cannot_have(header: Header) -> None:
    with pytest.raises(UsageError, match="no cache type q3_k"):
        plan(header, machine(64 * GB), kv_type=("q3_k", "f16"))
    with pytest.raises(UsageError, match="needs flash attention"):
        plan(header, machine(64 * GB), kv_type=("f16", "q8_0"), flash_attn="off")
    odd = model_info(header)
    odd = odd._replace(layers=tuple(layer._replace(head_dim_k=80, head_dim_v=80) for layer in odd.layers))
    with pytest.raises(UsageError, match="multiple of 32; this model's have 80"):
        make_plan(odd, header.tensors, machine(64 * GB), Wish(kv_type=("q8_0", "q8_0")))
    # Left to choose, it is no candidate.
    tight = machine(int(make_plan(odd, header.tensors, machine(64 * GB), Wish()).total_bytes * 0.9))
    assert make_plan(odd, header.tensors, tight, Wish(n_ctx_min=256)).kv_type == ("f16", "f16")


def test_all_on_the_gpu_when_it_fits(header: Header) -> None:
    found = plan(header, machine(64 * GB, device("CUDA0", 8 * GB)), n_ctx=4096)
    host, gpu = found.uses
    assert (found.gpu_layers, gpu.name, gpu.layers, host.layers) == (9, "CUDA0", 9, 0)
    assert gpu.kv_bytes == found.kv_bytes and host.kv_bytes == 0
    assert host.weights_bytes < gpu.weights_bytes, "only the embeddings stay"
    assert found.notes == ()


def test_smaller_cache_and_context_come_before_layers_leave(header: Header) -> None:
    all_of_it = plan(header, machine(64 * GB, device("CUDA0", 64 * GB)), n_ctx=131072).uses[1].needed_bytes
    tight = machine(64 * GB, device("CUDA0", all_of_it))
    found = plan(header, tight, n_ctx=131072, n_ctx_min=4096)
    assert (found.gpu_layers, found.n_ctx, found.kv_type) == (9, 131072, ("q8_0", "q8_0"))
    assert found.notes[0] == "KV cache in q8_0: f16 does not fit"
    weights = plan(header, machine(64 * GB, device("CUDA0", 64 * GB)), n_ctx=4096).uses[1].weights_bytes
    tighter = machine(64 * GB, device("CUDA0", int(weights * 1.2)))
    found = plan(header, tighter, n_ctx=131072, n_ctx_min=4096)
    assert found.gpu_layers == 9 and 4096 <= found.n_ctx < 131072


def test_layers_that_stay_behind_are_said(header: Header) -> None:
    found = plan(header, machine(64 * GB, device("CUDA0", 700_000_000)), n_ctx=4096)
    assert 0 < found.gpu_layers < 9
    host, gpu = found.uses
    assert gpu.needed_bytes <= budget_bytes(gpu.free_bytes)
    assert host.layers + gpu.layers == 9
    assert host.kv_bytes + gpu.kv_bytes == found.kv_bytes
    assert found.left_behind == f"{host.layers} of 9 layers stay on the CPU: 700 MB is free on CUDA0"


def test_a_gpu_too_small_for_a_layer_is_left_alone(header: Header) -> None:
    found = plan(header, machine(64 * GB, device("CUDA0", 20_000_000)), n_ctx=4096)
    assert found.gpu_layers == 0 and len(found.uses) == 1
    assert found.left_behind == "9 of 9 layers stay on the CPU: 20 MB is free on CUDA0"


def test_what_the_user_sets_stays_or_is_refused(header: Header) -> None:
    gpu = machine(64 * GB, device("CUDA0", 700_000_000))
    assert plan(header, gpu, n_ctx=4096, gpu_layers=2).gpu_layers == 2
    assert plan(header, gpu, n_ctx=4096, gpu_layers=0).uses[0].layers == 9
    assert plan(header, machine(64 * GB), n_ctx=4096, gpu_layers=ALL_LAYERS).gpu_layers == 0
    assert plan(header, machine(64 * GB, device("CUDA0", 8 * GB)), n_ctx=4096, gpu_layers=99).gpu_layers == 9
    with pytest.raises(DoesNotFitError) as refusal:
        plan(header, gpu, n_ctx=4096, gpu_layers=ALL_LAYERS)
    assert "1.3 GB on CUDA0" in refusal.value.message and "700 MB is free" in refusal.value.message
    layers = plan(header, gpu, n_ctx=4096).gpu_layers
    assert refusal.value.hint == f"what fits: -g {layers}"


def test_kv_on_the_cpu(header: Header) -> None:
    found = plan(header, machine(64 * GB, device("CUDA0", 8 * GB)), n_ctx=4096, kv_on_cpu=True)
    host, gpu = found.uses
    assert (gpu.kv_bytes, host.kv_bytes) == (0, found.kv_bytes)
    assert found.gpu_layers == 9 and found.kv_on_cpu


def test_experts_leave_before_layers(experts: Header) -> None:
    whole = plan(experts, machine(64 * GB, device("CUDA0", 64 * GB)), n_ctx=4096)
    needed = whole.uses[1].needed_bytes
    assert whole.cpu_expert_layers == 0
    tight = plan(experts, machine(64 * GB, device("CUDA0", int(needed * 0.8))), n_ctx=4096)
    assert tight.gpu_layers == 9 and 0 < tight.cpu_expert_layers < 8
    assert tight.left_behind.startswith(f"the experts of {tight.cpu_expert_layers} layers stay on the CPU: ")
    tighter = plan(experts, machine(64 * GB, device("CUDA0", int(needed * 0.15))), n_ctx=4096)
    assert tighter.cpu_expert_layers == 8
    assert 0 < tighter.gpu_layers < 9
    wished = plan(experts, machine(64 * GB, device("CUDA0", 64 * GB)), n_ctx=4096, cpu_expert_layers=ALL_LAYERS)
    assert (wished.gpu_layers, wished.cpu_expert_layers, wished.left_behind) == (9, 8, "")
    assert wished.uses[0].weights_bytes > whole.uses[0].weights_bytes


def test_several_devices_are_filled_from_the_last(header: Header) -> None:
    """RPC workers come first in llama.cpp's order, and take what the local GPU cannot."""
    both = machine(64 * GB, device("CUDA0", 700_000_000), device("RPC0", 8 * GB))
    found = plan(header, both, n_ctx=4096)
    _host, worker, local = found.uses
    assert (worker.name, local.name) == ("RPC0", "CUDA0")
    assert worker.layers + local.layers == 9 and worker.layers > 0
    roomy = machine(64 * GB, device("CUDA0", 8 * GB), device("RPC0", 8 * GB))
    assert [use.name for use in plan(header, roomy, n_ctx=4096).uses] == ["CPU", "CUDA0"]
    assert [use.name for use in plan(header, roomy, n_ctx=4096, devices=("rpc0",)).uses] == ["CPU", "RPC0"]
    assert len(plan(header, roomy, n_ctx=4096, devices=("none",)).uses) == 1
    with pytest.raises(UsageError, match="no device CUDA7") as refusal:
        plan(header, roomy, n_ctx=4096, devices=("CUDA7",))
    assert refusal.value.hint == "this build has CUDA0, RPC0"


def test_an_integrated_gpu_shares_the_memory(header: Header) -> None:
    """Its total is the machine's RAM: what it takes is missing there."""
    needed = plan(header, machine(64 * GB), n_ctx=4096).total_bytes
    roomy = machine(2 * needed, device("Vulkan0", 2 * needed, "igpu"))
    assert plan(header, roomy, n_ctx=4096).gpu_layers == 9
    with pytest.raises(DoesNotFitError):
        plan(header, machine(needed, device("Vulkan0", needed, "igpu")), n_ctx=4096)


def test_repacked_matrices_of_a_tied_model_are_counted_twice(tmp_path: Path) -> None:
    header = open_header(tiny_gguf(tmp_path / "tied.gguf", n_embd=256, n_vocab=2048, qtype="Q4_0", tied=True))
    info = model_info(header)
    plain = make_plan(info, header.tensors, machine(GB), Wish(n_ctx=256))
    repacking = machine(GB)._replace(features=("AVX2", "REPACK"))
    repacked = make_plan(info, header.tensors, repacking, Wish(n_ctx=256))
    embedding = next(t.n_bytes for t in header.tensors if t.name == "token_embd.weight")
    assert repacked.weights_bytes - plain.weights_bytes == embedding


def test_a_header_without_layers_or_training_context_still_plans(header: Header) -> None:
    info: ModelInfo = model_info(header)._replace(n_ctx_train=0, layers=(), n_layer=0)
    tensors = (TensorInfo("token_embd.weight", (64, 64), TENSOR_TYPES[0], 0, 4 * 64 * 64),)
    found = make_plan(info, tensors, machine(GB), Wish())
    assert (found.n_ctx, found.kv_bytes) == (4096, 0)


def test_a_local_gpu_holds_copies_that_a_worker_does_not(experts: Header) -> None:
    def compute(*devices: Device, **wish: Any) -> int:
        return plan(experts, machine(64 * GB, *devices), n_ctx=4096, **wish).uses[-1].compute_bytes

    cuda, worker = device("CUDA0", 64 * GB), device("RPC0", 64 * GB)
    assert compute(cuda) == compute(worker)
    largest = max(tensor.n_bytes for tensor in scaled(experts, 130) if "_exps" in tensor.name)
    assert compute(cuda, cpu_expert_layers=3) == compute(worker, cpu_expert_layers=3) + largest
    half = plan(experts, machine(64 * GB, cuda), n_ctx=4096).uses[1].needed_bytes * 2 // 3
    two = plan(experts, machine(64 * GB, device("CUDA0", half), device("CUDA1", half)), n_ctx=4096)
    masks = 4096 * 512 * 2
    assert two.gpu_layers == 9 and len(two.uses) == 3
    assert two.uses[-1].compute_bytes >= compute(cuda) + 3 * masks
