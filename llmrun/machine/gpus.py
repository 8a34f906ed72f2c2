"""GPUs that the machine holds, found without any GPU library: what a CPU-only build would leave unused."""

import sys
from pathlib import Path
from typing import NamedTuple

from llmrun.machine.kernel_files import read, read_int

PCI_VENDORS = {
    "0x10de": ("nvidia", "NVIDIA GPU", "nvidiactl"),
    "0x1002": ("amd", "AMD GPU", "dri/renderD*"),
    "0x8086": ("intel", "Intel GPU", "dri/renderD*"),
}
STRONG_VRAM_BYTES = 4 << 30  # what the firmware sets aside for the GPU inside a processor is less
BACKENDS = {"nvidia": "CUDA", "amd": "HIP", "intel": "Vulkan", "apple": "Metal"}


class Gpu(NamedTuple):
    """`vendor` is nvidia, amd, intel or apple. `reachable`: its device file is here, which in a container it is
    only if the container was given it. `strong`: it has memory of its own, or is Apple's; the small GPUs inside
    processors are not, and seldom beat the cores beside them.
    """

    vendor: str
    name: str
    reachable: bool
    strong: bool


def find_gpus(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """The GPUs of this machine; `root` is where dev, proc and sys are."""
    if sys.platform == "darwin":
        import platform

        return (Gpu("apple", "Apple GPU", True, True),) if platform.machine() == "arm64" else ()
    listed = _nvidia_driver(root)
    on_bus = [gpu for gpu in _pci(root) if not (listed and gpu.vendor == "nvidia")]
    if not listed and not on_bus and root == Path("/") and _has_nvidia_tool():
        return (Gpu("nvidia", "NVIDIA GPU", True, True),)
    return (*listed, *on_bus)


def _has_nvidia_tool() -> bool:
    """Under WSL and on Windows there is neither a bus nor a driver folder to read."""
    if sys.platform != "win32" and not Path("/dev/dxg").exists():
        return False
    import shutil

    return shutil.which("nvidia-smi") is not None


def _nvidia_driver(root: Path) -> list[Gpu]:
    found = []
    for card in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        lines = [line.partition(":") for line in read(card).splitlines()]
        name = next((value.strip() for key, _, value in lines if key == "Model"), "NVIDIA GPU")
        found.append(Gpu("nvidia", name, (root / "dev/nvidiactl").exists(), True))
    return found


def _pci(root: Path) -> list[Gpu]:
    """Display controllers on the bus."""
    found = []
    for card in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor, name, nodes = PCI_VENDORS.get(read(card / "vendor"), ("", "", ""))
        if vendor and read(card / "class").startswith("0x03"):
            found.append(Gpu(vendor, name, any((root / "dev").glob(nodes)), _is_strong(vendor, card)))
    return found


def _is_strong(vendor: str, card: Path) -> bool:
    if vendor == "amd":
        return (read_int(card / "mem_info_vram_total") or 0) >= STRONG_VRAM_BYTES
    # Intel's own place for the GPU inside the processor is bus 0.
    return vendor == "nvidia" or card.name.partition(":")[2][:2] != "00"


def build_command(backend: str, version: str) -> str:
    """The line that installs llama-cpp-python with `backend`: CUDA, HIP, Vulkan, Metal, RPC."""
    flags = f"-DGGML_{backend.upper()}=on"
    install = (
        "pip install --force-reinstall --no-cache-dir --no-deps "
        f"--no-binary llama-cpp-python llama-cpp-python=={version}"
    )
    if sys.platform == "win32":
        return f'$env:CMAKE_ARGS="{flags}"; {install}'
    return f'CMAKE_ARGS="{flags}" {install}'
