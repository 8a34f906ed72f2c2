"""How the kernel sets the clock of the CPUs: under `powersave` a short measurement may never see full speed."""

from pathlib import Path

from llmrun.machine.kernel_files import read

CPUS = Path("/sys/devices/system/cpu")


def read_governor(cpus: Path = CPUS) -> str:
    """The cpufreq governor's name, "" where it cannot be read (virtual machines, other systems)."""
    return read(cpus / "cpu0/cpufreq/scaling_governor")
