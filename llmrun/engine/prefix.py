"""Which KV cells of earlier requests a new prompt can start from. Pure: token lists and numbers only."""

from collections.abc import Sequence
from typing import NamedTuple


class Resident(NamedTuple):
    """What a slot's KV cache holds: `tokens` from position 0, and the first position that is still there
    (sliding windows forget old ones). `busy` while a request runs in it; `last_used` orders evictions."""

    slot: int
    tokens: Sequence[int]
    first_position: int = 0
    busy: bool = False
    last_used: int = 0


class Reuse(NamedTuple):
    """Start in `slot` with `n_tokens` of the prompt present, copied from `source` where that is another slot."""

    slot: int
    source: int
    n_tokens: int


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    shorter = min(len(a), len(b))
    return next((i for i in range(shorter) if a[i] != b[i]), shorter)


def reusable_length(prompt: Sequence[int], resident: Resident, n_swa: int, whole_only: bool) -> int:
    """Leading prompt tokens that need not be computed again.

    The last prompt token always is, for its logits. With a sliding window of `n_swa`, the cells before the cut must
    still be there: first_position <= max(0, n - n_swa), else the answer would be silently wrong. `whole_only`:
    recurrent state cannot be cut back, so all of the resident is used or nothing."""
    n = min(common_length(prompt, resident.tokens), len(prompt) - 1)
    if n <= 0 or (whole_only and (n < len(resident.tokens) or resident.busy)):
        return 0
    if n_swa and resident.first_position > max(0, n - n_swa):
        return 0
    return n


def choose(prompt: Sequence[int], residents: Sequence[Resident], n_swa: int, whole_only: bool) -> Reuse:
    """Pick the slot for a new prompt: one idle resident must exist.

    The longest reusable prefix wins. An idle resident that is mostly that prefix is continued in place; otherwise
    the prefix is shared into the least valuable idle slot, so that the other conversation stays."""
    idle = [resident for resident in residents if not resident.busy]
    lengths = {r.slot: reusable_length(prompt, r, n_swa, whole_only) for r in residents}
    best = max(residents, key=lambda r: (lengths[r.slot], not r.busy, r.last_used))
    n = lengths[best.slot]
    if n and not best.busy and (len(idle) == 1 or whole_only or 2 * n >= len(best.tokens)):
        return Reuse(best.slot, best.slot, n)
    target = min(
        (resident for resident in idle if len(idle) == 1 or resident.slot != best.slot or not n),
        key=lambda r: (bool(r.tokens), r.last_used),
    )
    return Reuse(target.slot, best.slot if n else target.slot, n)


def removed_span(prompt: Sequence[int], resident: Sequence[int]) -> tuple[int, int] | None:
    """The span [start, end) whose removal makes `resident` a beginning of `prompt`; None where there is none.

    That is what a conversation looks like after its oldest exchange left the prompt."""
    start = common_length(prompt, resident)
    if start == 0 or start >= len(prompt):
        return None
    for end in range(start + 1, len(resident)):
        rest = len(resident) - end
        if resident[end] == prompt[start] and list(resident[end:]) == list(prompt[start : start + rest]):
            return start, end
    return None
