"""The number of threads for a run: chosen once, before prefill, and always with the reason beside it."""

from typing import NamedTuple

from llmrun.machine.cores import Cores


class ThreadChoice(NamedTuple):
    """`n` is never 0; `reason` is shown in `-v`, `bench` and `doctor`."""

    n: int
    reason: str


def choose_threads(
    cores: Cores, busy_cores: float = 0.0, requested: int | None = None, seed_given: bool = False
) -> ThreadChoice:
    """What the user asks for; else the usable cores less those that other programs keep busy.

    A thread that waits for its turn on a busy core holds all others up at each barrier, several hundred
    times per token. With a seed given the load is ignored, since the thread count changes rounding.
    """
    if requested is not None:
        return ThreadChoice(requested, "--threads")
    if seed_given:
        return ThreadChoice(cores.usable, f"{cores.reason}; load is ignored with --seed")
    idle = max(1, cores.allowed - round(busy_cores))
    if idle < cores.usable:
        return ThreadChoice(idle, f"{cores.reason}, {busy_cores:.1f} kept busy by other programs")
    return ThreadChoice(cores.usable, cores.reason)
