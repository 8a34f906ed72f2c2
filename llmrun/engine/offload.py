"""Layers on other devices than the CPU: how llama.cpp is told, what it then did, and RPC workers.

Knows nothing of what fits; that is the plan's.
"""

import ctypes
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from llmrun.engine import capi
from llmrun.errors import EngineError, UsageError

CONNECT_S = 5.0
DEFAULT_PORT = 50052  # of llama.cpp's own rpc-server


class Placed(NamedTuple):
    """What llama.cpp did, from its log: layers on devices, of all; bytes of weights by buffer name."""

    layers: int
    of_layers: int
    buffers: tuple[tuple[str, int], ...]


class _Override(ctypes.Structure):
    """llama_model_tensor_buft_override, which the binding does not declare."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p)]


def set_params(
    params: Any, gpu_layers: int, devices: tuple[str, ...] | None, split: tuple[int, ...], cpu_expert_layers: int
) -> list[Any]:
    """Write into llama_model_params what ModelSettings says. The returned objects must outlive the model.

    Raises EngineError for a device that the build does not have.
    """
    params.n_gpu_layers = gpu_layers
    kept: list[Any] = []
    if devices is not None or gpu_layers == 0:
        kept.append(_device_list(devices or ()))
        params.devices = ctypes.cast(kept[-1], ctypes.c_void_p)
    if split:
        shares = (ctypes.c_float * max(len(split), int(capi.lib().llama_max_devices())))(*split)
        kept.append(shares)
        params.tensor_split = ctypes.cast(shares, ctypes.POINTER(ctypes.c_float))
    if cpu_expert_layers:
        kept.append(_expert_overrides(cpu_expert_layers))
        params.tensor_buft_overrides = ctypes.cast(kept[-1], ctypes.c_void_p)
    return kept


def _device_list(names: Sequence[str]) -> Any:
    handles = capi.device_handles()
    for name in names:
        if name not in handles:
            raise EngineError(f"this llama.cpp build has no device {name}", "llmrun doctor lists them")
    return (ctypes.c_void_p * (len(names) + 1))(*(handles[name] for name in names), None)


def _expert_overrides(n_layers: int) -> Any:
    """The pattern that llama.cpp's own --n-cpu-moe uses (common/common.h), for each layer."""
    cpu = capi.ggml("ggml_backend_cpu_buffer_type", ctypes.c_void_p)()
    patterns = [rf"blk\.{layer}\.ffn_(up|down|gate|gate_up)_(ch|)exps".encode() for layer in range(n_layers)]
    return (_Override * (n_layers + 1))(*(_Override(pattern, cpu) for pattern in patterns), _Override(None, None))


def placed(log: Iterable[str]) -> Placed:
    """Read the log of a model load."""
    text = "".join(log)
    layers = re.search(r"offloaded (\d+)/(\d+) layers to GPU", text)
    sizes: dict[str, int] = {}
    for name, size in re.findall(r"(\S+) model buffer size = +([\d.]+) MiB", text):
        sizes[name] = sizes.get(name, 0) + round(float(size) * (1 << 20))
    counts = (int(layers[1]), int(layers[2])) if layers else (0, 0)
    return Placed(*counts, tuple(sizes.items()))


def parse_endpoints(text: str) -> tuple[str, ...]:
    """`HOST[:PORT],...` -> `host:port` each. Raises UsageError."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, _, port = part.rpartition(":") if ":" in part else (part, "", str(DEFAULT_PORT))
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UsageError(f"--rpc {part} is not HOST:PORT", f"for example: --rpc 192.168.1.5:{DEFAULT_PORT}")
        found.append(f"{host}:{int(port)}")
    return tuple(dict.fromkeys(found))


def require_rpc() -> None:
    """Raises EngineError, with the line that mends it, for a build without the RPC backend."""
    if "RPC" not in capi.backends():
        from llmrun.machine.gpus import build_command

        raise EngineError(
            "this build of llama.cpp has no RPC backend, so it reaches no other machine",
            build_command("RPC", capi.binding_version()),
        )


def add_workers(endpoints: Sequence[str]) -> None:
    """Register RPC workers as devices. Raises EngineError for a build without RPC and for one that is not there."""
    if not endpoints:
        return
    require_rpc()
    add = capi.ggml("ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)
    register = capi.ggml("ggml_backend_register", None, ctypes.c_void_p)
    known = {device.description for device in capi.devices()}
    for endpoint in endpoints:
        if endpoint in known:
            continue
        _knock(endpoint)  # llama.cpp ends the process where nobody answers
        server = add(endpoint.encode())
        if not server:
            raise EngineError(f"the RPC worker at {endpoint} offers no device", "start it with: llmrun rpc-worker")
        register(server)


def _knock(endpoint: str) -> None:
    import socket

    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise EngineError(
            f"no RPC worker answers at {endpoint}: {error.strerror or error}",
            f"on that machine: llmrun rpc-worker --host {host} --port {port}",
        ) from error


def serve(host: str, port: int, n_threads: int) -> None:
    """Offer this machine's devices (the CPU where it has no other) to others, until the process ends.

    Blocks. There is no authentication: whoever reaches the port may use the device and its memory.
    """
    require_rpc()
    wanted = [device.name for device in capi.devices() if device.kind in ("gpu", "igpu") and not device.is_worker]
    handles = capi.device_handles()
    devices = [handles[name] for name in wanted or ["CPU"]]
    start = capi.ggml(
        "ggml_backend_rpc_start_server",
        None,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.c_void_p,
    )
    start(f"{host}:{port}".encode(), None, n_threads, len(devices), (ctypes.c_void_p * len(devices))(*devices))
    raise EngineError(f"the RPC worker cannot listen on {host}:{port}", "is the port in use, or the address wrong?")
