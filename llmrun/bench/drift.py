"""How far a setting moves a model's answers: the same greedy prompts with one thing changed at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llmrun.bench.grid import Setting
from llmrun.bench.stop import Stop
from llmrun.bench.subject import Need, Subject
from llmrun.bench.trace import Trace, trace
from llmrun.errors import LlmrunError
from llmrun.report import Report

if TYPE_CHECKING:
    import numpy as np

N_GEN = 48
TEXTS = (
    "The lighthouse keeper climbed the stairs at dusk, as he had done every evening for thirty years, and lit",
    "def median(values):\n    ordered = sorted(values)\n    middle = len(ordered) // 2\n    if len(ordered) % 2:\n",
    "Question: A train leaves at 9:40 and arrives at 13:05. How long does the journey take? Answer: It takes",
    "Water boils at a lower temperature on a mountain than at the sea, because the pressure of the air there",
)
AGAIN = "the same again"


@dataclass(frozen=True)
class Variant:
    """A setting, and how many of the prompts are decoded together."""

    name: str
    setting: Setting
    at_once: int = 1


@dataclass(frozen=True)
class Drift:
    """Against the base setting, over all prompts. `first_difference` is the earliest token (from 1) whose choice
    differs, None where none does; `logit_difference` the largest of any logit; `kl` in nats per token, base to
    variant; `same_top` the share of tokens with the same choice after the same text. `identical`: bit for bit.
    """

    model: str
    variant: str
    n_tokens: int
    first_difference: int | None
    prompts_differing: int
    logit_difference: float
    kl_mean: float
    kl_max: float
    same_top: float
    identical: bool
    finding: str = ""


def variants(base: Setting, cores: int) -> list[Variant]:
    """One thing changed in each."""
    threads = 1 if base.n_threads > 1 else max(2, cores)
    small = max(1, min(16, base.n_ubatch // 2))
    kv_type = ("f16", "f16") if base.kv_type != ("f16", "f16") else ("q8_0", "q8_0")
    flash = "off" if base.flash_attn == "on" else "on"
    return [
        Variant(AGAIN, base),
        Variant(f"{len(TEXTS)} sequences at once", base, len(TEXTS)),
        Variant(f"{threads} thread{'s' if threads > 1 else ''}", replace(base, n_threads=threads)),
        Variant(f"passes of {small} tokens", replace(base, n_ubatch=small)),
        Variant(f"{kv_type[0]} KV cache", replace(base, kv_type=kv_type)),
        Variant(f"flash attention {flash}", replace(base, flash_attn=flash)),
    ]


def run_drift(subject: Subject, base: Setting, cores: int, stop: Stop, report: Report) -> Iterator[Drift]:
    """A result for each variant that the model can run; the others are noted. Raises Interrupted."""
    prompts: list[list[int]] = []
    traces: list[Trace] = []
    # One that ubatch does not split, and flash attention that is known: `auto` would hide which of the two it is.
    base = replace(base, flash_attn="on" if base.flash_attn == "auto" else base.flash_attn)
    tried = [Variant("base", base), *variants(base, cores)]
    for done, variant in enumerate(tried):
        stop.check()
        report.progress(f"{subject.name} {variant.name}", done, len(tried), "settings")
        try:
            subject.check(variant.setting, need(prompts))
        except LlmrunError as error:
            if not traces:
                raise
            report.note(f"{variant.name} is left out: {error.message}")
            continue
        with stop.waiting():
            context = subject.open(variant.setting, need(prompts))
        with context:
            prompts = prompts or [context.model.vocab.tokenize(text, add_special=True) for text in TEXTS]
            found = trace(context, prompts, N_GEN, stop, along=traces or None, at_once=variant.at_once)
        report.progress(f"{subject.name} {variant.name}", len(tried), len(tried), "settings")
        if not traces:
            traces = found
            continue
        yield compare(subject.name, variant.name, traces, found)


def need(prompts: Sequence[Sequence[int]]) -> Need:
    """The same context for all variants. A token covers at least one byte, so the texts bound it."""
    n_prompt = sum(len(text.encode()) + 2 for text in TEXTS) if not prompts else sum(map(len, prompts))
    n_ctx = -(-(n_prompt + len(TEXTS) * N_GEN) // 256) * 256
    return Need(n_ctx, len(TEXTS), len(TEXTS))


def compare(model: str, variant: str, base: Sequence[Trace], other: Sequence[Trace]) -> Drift:
    """What differs between two sets of traces over the same tokens."""
    import numpy as np

    firsts, same, largest = [], 0, 0.0
    divergences: list[float] = []
    for one, two in zip(base, other, strict=True):
        differing = [step for step, (a, b) in enumerate(zip(one.chosen, two.chosen, strict=True), 1) if a != b]
        firsts += differing[:1]
        same += len(one.chosen) - len(differing)
        largest = max(largest, float(np.abs(one.logits - two.logits).max()))
        divergences += _divergence(one.logits, two.logits)
    identical = all(np.array_equal(one.logits, two.logits) for one, two in zip(base, other, strict=True))
    n_tokens = sum(len(one.chosen) for one in base)
    broken = variant == AGAIN and not identical
    return Drift(
        model=model,
        variant=variant,
        n_tokens=n_tokens,
        first_difference=min(firsts, default=None),
        prompts_differing=len(firsts),
        logit_difference=largest,
        kl_mean=sum(divergences) / n_tokens,
        kl_max=max(divergences),
        same_top=same / n_tokens,
        identical=identical,
        finding="one setting, run twice, gave different numbers: memory or a device may be faulty" if broken else "",
    )


def _divergence(base: "np.ndarray[Any, Any]", other: "np.ndarray[Any, Any]") -> list[float]:
    """Kullback-Leibler divergence of each step, in nats; rounding below 0 is 0."""
    import numpy as np

    def log_softmax(row: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        shifted = row.astype(np.float64) - float(row.max())
        logs: np.ndarray[Any, Any] = shifted - np.log(np.exp(shifted).sum())
        return logs

    found = []
    for one, two in zip(base, other, strict=True):
        p, q = log_softmax(one), log_softmax(two)
        found.append(max(0.0, float((np.exp(p) * (p - q)).sum())))
    return found


def sentence(drift: Drift) -> str:
    """The result in words."""
    if drift.identical:
        return "identical bit for bit"
    if drift.first_difference is None:
        return "the same tokens"
    return f"other tokens in {drift.prompts_differing} of {len(TEXTS)} prompts"
