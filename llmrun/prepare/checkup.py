"""What this machine, this build and these settings are: the facts that `doctor` shows and draws its findings from."""

import os
import platform
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from llmrun import __version__, paths
from llmrun.engine import capi
from llmrun.errors import LlmrunError
from llmrun.machine.cores import read_cores
from llmrun.machine.features import cpu_features
from llmrun.machine.gpus import BACKENDS, build_command
from llmrun.machine.inventory import Machine, read_machine
from llmrun.machine.load import CpuReading
from llmrun.machine.threads import ThreadChoice, choose_threads
from llmrun.models.inventory import LocalModel, list_models
from llmrun.models.sources import hf_cache, ollama
from llmrun.models.store import Store

LOAD_S = 0.3  # over which the load is read


@dataclass(frozen=True)
class Software:
    """`fault`: why llama.cpp's library does not load, or "". `unused_features`: instruction sets of the processor
    that the build leaves unused."""

    llmrun: str
    python: str
    platform: str
    llama_cpp_python: str
    llama_cpp: str
    library: str
    backends: tuple[str, ...]
    features: tuple[str, ...]
    unused_features: tuple[str, ...]
    fault: str


@dataclass(frozen=True)
class Place:
    """A folder with models or files of llmrun's. Bytes."""

    name: str
    path: str
    n_models: int
    size_bytes: int
    free_bytes: int
    writable: bool


@dataclass(frozen=True)
class Hub:
    """Whether the hub answers; `fault` says why not."""

    endpoint: str
    answers: bool
    seconds: float
    fault: str


@dataclass(frozen=True)
class GpuBuild:
    """The line that installs llama.cpp with a backend."""

    backend: str
    command: str


@dataclass(frozen=True)
class Facts:
    """`hub` is None where it was not asked."""

    software: Software
    machine: Machine
    busy_cores: float
    threads: ThreadChoice
    places: tuple[Place, ...]
    damaged: tuple[str, ...]
    offline: bool
    hub: Hub | None
    gpu_builds: tuple[GpuBuild, ...]


def gather(online: bool) -> Facts:
    """Reads everything, changes nothing; asks the hub only if `online`."""
    before, started = CpuReading.now(), time.monotonic()
    software = _software()
    machine = read_machine() if software.fault else read_machine(capi.devices(), capi.cpu_features())
    models = list_models(Store(), others=True)
    hub = _ask_hub() if online else None
    time.sleep(max(0.0, LOAD_S - (time.monotonic() - started)))
    busy = CpuReading.now().busy_cores_since(before, machine.cores.cpus)
    return Facts(
        software=software,
        machine=machine,
        busy_cores=busy,
        threads=choose_threads(read_cores(), busy),
        places=_places(models),
        damaged=tuple(f"{model.name}: {model.fault}" for model in models if model.fault),
        offline=hf_cache.is_offline(),
        hub=hub,
        gpu_builds=_gpu_builds(machine, software),
    )


def _software() -> Software:
    try:
        binding = capi.binding_version()
        version, library, backends = capi.version(), str(capi.library_dir()), capi.backends()
        features, fault = capi.cpu_features(), ""
    except (LlmrunError, ImportError) as error:
        binding, version, library, backends, features = "", "", "", (), ()
        fault = str(error)
    return Software(
        llmrun=__version__,
        python=platform.python_version(),
        platform=platform.platform(terse=True) + f" {platform.machine()}",
        llama_cpp_python=binding,
        llama_cpp=version,
        library=library,
        backends=backends,
        features=features,
        unused_features=() if fault else tuple(sorted(cpu_features() - set(features))),
        fault=fault,
    )


def _places(models: Iterable[LocalModel]) -> tuple[Place, ...]:
    folders = [("store", paths.cache_dir()), ("hub", hf_cache.cache_dir())]
    folders += [("ollama", folder) for folder in ollama.folders()]
    folders += [("settings", paths.config_dir()), ("state", paths.state_dir())]
    models = list(models)
    return tuple(_place(name, path, [m for m in models if m.place == name]) for name, path in folders)


def _place(name: str, path: Path, models: list[LocalModel]) -> Place:
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    return Place(
        name=name,
        path=str(path),
        n_models=len(models),
        size_bytes=sum(model.size_bytes for model in models),
        free_bytes=shutil.disk_usage(there).free,
        writable=there.is_dir() and os.access(there, os.W_OK),
    )


def _ask_hub() -> Hub:
    from llmrun.models import http
    from llmrun.models.sources import hf_api

    started, endpoint, fault = time.monotonic(), "", ""
    try:
        endpoint = hf_api.endpoint()
        with http.open_client() as client, http.get(client, f"{endpoint}/api/models?limit=1", {}) as response:
            if response.status_code >= 400:
                fault = f"it answers with status {response.status_code}"
    except LlmrunError as error:
        fault = error.message
    return Hub(endpoint, not fault, time.monotonic() - started, fault)


def _gpu_builds(machine: Machine, software: Software) -> tuple[GpuBuild, ...]:
    """For the GPUs of this machine, and RPC for those of others, as far as the build lacks them."""
    wanted = [BACKENDS[gpu.vendor] for gpu in machine.gpus] + ["RPC"]
    if "HIP" in wanted:
        wanted.insert(wanted.index("HIP") + 1, "Vulkan")  # where ROCm is not installed or not supported
    present = {backend.upper() for backend in software.backends}
    aliases = {"HIP": "ROCM", "METAL": "MTL"}
    version = software.llama_cpp_python or "0.3.36"
    return tuple(
        GpuBuild(backend, build_command(backend, version))
        for backend in dict.fromkeys(wanted)
        if not present & {backend.upper(), aliases.get(backend.upper(), "")}
    )
