"""The sampling settings of one request: their names, defaults and bounds. Imports no llama.cpp."""

import os
from typing import NamedTuple

from llmrun.errors import UsageError

# llama.cpp's own default order (common/common.h)
DEFAULT_ORDER = (
    "penalties",
    "dry",
    "top-n-sigma",
    "top-k",
    "typical",
    "top-p",
    "min-p",
    "xtc",
    "temperature",
)
MAX_SEED = 2**32 - 2  # the largest value means "random" to llama.cpp


class SamplingParams(NamedTuple):
    """Every knob of the chain. What is 0 (or 1 for top_p, typical and repeat_penalty) is off; temp 0 is greedy."""

    temp: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical: float = 1.0
    top_n_sigma: float = 0.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_last_n: int = 1024
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    seed: int = 0
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    samplers: tuple[str, ...] = DEFAULT_ORDER
    grammar: str = ""


def draw_seed() -> int:
    """A random seed: never-set seeds repeat in llama.cpp, which uses one fixed default."""
    return int.from_bytes(os.urandom(8), "little") % (MAX_SEED + 1)


def check_params(params: SamplingParams) -> None:
    """Raise UsageError for values that mean nothing, named as the flags are."""
    bounds = (
        ("temp", params.temp, 0, 100),
        ("top-k", params.top_k, 0, 2**31 - 1),
        ("top-p", params.top_p, 0, 1),
        ("min-p", params.min_p, 0, 1),
        ("typical", params.typical, 0, 1),
        ("top-n-sigma", params.top_n_sigma, 0, 1000),
        ("repeat-penalty", params.repeat_penalty, 1e-6, 100),
        ("repeat-last-n", params.repeat_last_n, 0, 2**31 - 1),
        ("presence-penalty", params.presence_penalty, -100, 100),
        ("frequency-penalty", params.frequency_penalty, -100, 100),
        ("dynatemp-range", params.dynatemp_range, 0, 100),
        ("dynatemp-exponent", params.dynatemp_exponent, 0, 100),
        ("dry-multiplier", params.dry_multiplier, 0, 100),
        ("dry-base", params.dry_base, 1, 100),
        ("dry-allowed-length", params.dry_allowed_length, 0, 2**31 - 1),
        ("dry-last-n", params.dry_last_n, 0, 2**31 - 1),
        ("xtc-probability", params.xtc_probability, 0, 1),
        ("xtc-threshold", params.xtc_threshold, 0, 1),
        ("mirostat-tau", params.mirostat_tau, 0, 100),
        ("mirostat-eta", params.mirostat_eta, 0, 1),
        ("seed", params.seed, 0, MAX_SEED),
    )
    for name, value, low, high in bounds:
        if not low <= value <= high:  # NaN fails every comparison
            raise UsageError(f"--{name} {value:g} is outside {low:g} to {high:g}")
    if params.mirostat not in (0, 2):
        raise UsageError(f"--mirostat {params.mirostat} is neither 0 (off) nor 2")
    unknown = [name for name in params.samplers if name not in DEFAULT_ORDER]
    if unknown:
        raise UsageError(f"--samplers has no '{unknown[0]}'", f"it takes {','.join(DEFAULT_ORDER)} in any order")
