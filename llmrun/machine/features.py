"""Instruction sets that the processor has, by llama.cpp's names, to tell which a build leaves unused."""

import platform
import sys
from pathlib import Path

from llmrun.machine.kernel_files import read

# The kernel's flags for those that llama.cpp has kernels for.
_X86 = {
    "avx": "AVX", "avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "avx_vnni": "AVX_VNNI", "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI", "avx512_bf16": "AVX512_BF16", "amx_int8": "AMX_INT8",
}  # fmt: skip
_ARM = {"asimd": "NEON", "asimddp": "DOTPROD", "i8mm": "MATMUL_INT8", "sve": "SVE", "sme": "SME"}


def cpu_features(proc: Path = Path("/proc")) -> frozenset[str]:
    """Empty where the system does not say (it does on Linux)."""
    if sys.platform != "linux":
        return frozenset()
    names = _ARM if platform.machine() in ("aarch64", "arm64") else _X86
    for line in read(proc / "cpuinfo").splitlines():
        key, _, flags = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(names[flag] for flag in flags.split() if flag in names)
    return frozenset()
