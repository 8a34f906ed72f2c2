"""Which tests to run: lists and ranges as llama-bench takes them, and their full cross product. Pure."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from llmrun.engine.context import FLASH_ATTENTION, KV_TYPES
from llmrun.errors import UsageError

MOST_VALUES, MOST_TESTS = 1000, 10_000
MOST = 2**24  # of anything counted here: no context is longer
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?:([+*])(\d{1,9}))?)?")


@dataclass(frozen=True)
class Setting:
    """What a context is made with. `gpu_layers` None is auto, -1 all; `kv_type` is (K, V)."""

    n_threads: int
    n_batch: int
    n_ubatch: int
    gpu_layers: int | None
    kv_type: tuple[str, str]
    flash_attn: str


@dataclass(frozen=True)
class Case:
    """One test: after `depth` tokens, a prompt of `n_prompt` and then `n_gen` single tokens are decoded."""

    n_prompt: int
    n_gen: int
    depth: int
    repeats: int
    setting: Setting

    @property
    def name(self) -> str:
        """As llama-bench spells it: `pp512`, `tg128`, `pp512+tg128`, `tg128 @ d512`."""
        parts = [f"{kind}{n}" for kind, n in (("pp", self.n_prompt), ("tg", self.n_gen)) if n]
        return "+".join(parts) + (f" @ d{self.depth}" if self.depth else "")

    @property
    def n_ctx(self) -> int:
        return self.depth + self.n_prompt + self.n_gen


@dataclass(frozen=True)
class Grid:
    """Every value that each flag was given; `pairs` are those of --pg."""

    n_prompt: tuple[int, ...] = (512,)
    n_gen: tuple[int, ...] = (128,)
    pairs: tuple[tuple[int, int], ...] = ()
    depth: tuple[int, ...] = (0,)
    repeats: tuple[int, ...] = (5,)
    threads: tuple[int, ...] = ()  # empty: as chosen for the machine
    batch: tuple[int, ...] = (2048,)
    ubatch: tuple[int, ...] = (512,)
    gpu_layers: tuple[int | None, ...] = (None,)
    kv_type: tuple[tuple[str, str], ...] = (("f16", "f16"),)
    flash_attn: tuple[str, ...] = ("auto",)

    def settings(self, n_threads: int) -> list[Setting]:
        """What differs in the layers on the GPU comes last to change: the model is loaded again for it."""
        axes = (self.gpu_layers, self.kv_type, self.flash_attn, self.batch, self.ubatch, self.threads or (n_threads,))
        return [Setting(t, b, min(ub, b), g, kv, fa) for g, kv, fa, b, ub, t in itertools.product(*axes)]

    def cases(self, n_threads: int) -> list[Case]:
        """Raises UsageError where there is nothing to run, or far too much."""
        shapes = [(n, 0) for n in self.n_prompt if n] + [(0, n) for n in self.n_gen if n] + list(self.pairs)
        settings = self.settings(n_threads)
        n_tests = len(settings) * len(self.depth) * len(self.repeats) * len(shapes)
        if not n_tests:
            raise UsageError("there is no test to run: -p and -n are 0", "for example: -p 512 -n 128")
        if n_tests > MOST_TESTS:
            raise UsageError(f"these lists make {n_tests} tests, {MOST_TESTS} are the most", "give fewer values")
        return [
            Case(p, n, depth, repeats, setting)
            for setting in settings
            for repeats in self.repeats
            for depth in self.depth
            for p, n in dict.fromkeys(shapes)
        ]


def parse_counts(text: str, flag: str, least: int = 0) -> tuple[int, ...]:
    """`512`, `1,2,4`, `1-4`, `16-64+16`, `128-1024*2`, and lists of them. Raises UsageError."""
    values: list[int] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        if not found:
            raise UsageError(f"{flag} {text} is no list of numbers", f"for example: {flag} 128,512 or 128-1024*2")
        values += _expand(found, flag, text)
        if len(values) > MOST_VALUES:
            raise UsageError(f"{flag} {text} is more than {MOST_VALUES} values")
    for value in values:
        if not least <= value <= MOST:
            raise UsageError(f"{flag} {value} is not between {least} and {MOST}")
    return tuple(dict.fromkeys(values))


def _expand(found: re.Match[str], flag: str, text: str) -> list[int]:
    first = int(found[1])
    if found[2] is None:
        return [first]
    last, by, step = int(found[2]), found[3] or "+", int(found[4] or 1)
    if last < first:
        raise UsageError(f"{flag} {text} ends before it begins")
    if step < (2 if by == "*" else 1) or (by == "*" and not first):
        raise UsageError(f"{flag} {text} never reaches its end")
    values: list[int] = []
    while first <= last and len(values) <= MOST_VALUES:
        values.append(first)
        first = first * step if by == "*" else first + step
    return values


def parse_pairs(texts: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """`512,128`: a prompt and what is generated after it, timed together."""
    pairs = []
    for text in texts:
        prompt, comma, gen = text.partition(",")
        if not comma or "," in gen:
            raise UsageError(
                f"--pg {text} is not a prompt length and a number of tokens", "for example: --pg 512,128"
            )
        pairs += list(itertools.product(parse_counts(prompt, "--pg", 1), parse_counts(gen, "--pg", 1)))
    return tuple(pairs)


def parse_layers(text: str) -> tuple[int | None, ...]:
    words: dict[str, int | None] = {"auto": None, "all": -1, "-1": -1}
    values: list[int | None] = []
    for part in text.lower().split(","):
        part = part.strip()
        values += (words[part],) if part in words else parse_counts(part, "--gpu-layers")
    return tuple(dict.fromkeys(values))


def parse_kv_types(text: str) -> tuple[tuple[str, str], ...]:
    """`f16,q8_0` are two caches to test; `q8_0/f16` is one, of keys and values."""
    pairs: list[tuple[str, str]] = []
    for part in text.split(","):
        k_type, slash, v_type = part.partition("/")
        pairs += itertools.product(
            parse_cache_types(k_type, "--kv-type"), parse_cache_types(v_type if slash else k_type, "--kv-type")
        )
    return tuple(dict.fromkeys(pairs))


def parse_cache_types(text: str, flag: str) -> tuple[str, ...]:
    """A list of types for one half of the cache. Raises UsageError."""
    names = [part.strip() for part in text.lower().split(",")]
    for name in names:
        if name not in KV_TYPES:
            more = ", or K/V" if flag == "--kv-type" else ""
            raise UsageError(f"{flag} has no '{name}'", f"it takes {', '.join(KV_TYPES)}{more}")
    return tuple(dict.fromkeys(names))


def with_halves(
    pairs: Sequence[tuple[str, str]], k_types: Sequence[str], v_types: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """The caches in `pairs` with every one of `k_types` for the keys and of `v_types` for the values, as -ctk and
    -ctv ask for; an empty list leaves that half as it is."""
    return tuple(dict.fromkeys((k, v) for pair in pairs for k in k_types or pair[:1] for v in v_types or pair[1:]))


def parse_flash_attn(text: str) -> tuple[str, ...]:
    words = {"0": "off", "1": "on"}  # as llama-bench has it
    values = [words.get(part.strip(), part.strip()) for part in text.lower().split(",")]
    for value in values:
        if value not in FLASH_ATTENTION:
            raise UsageError(f"--flash-attn {value} is none of {', '.join(FLASH_ATTENTION)}")
    return tuple(dict.fromkeys(values))
