"""From a loaded model and a prompt's length to a running engine: context size, threads, then the context."""

from typing import TYPE_CHECKING

from llmrun.engine.context import Context, ContextSettings
from llmrun.engine.engine import Engine
from llmrun.engine.model import Model
from llmrun.errors import UsageError
from llmrun.machine.cores import read_cores
from llmrun.machine.load import CpuReading
from llmrun.machine.threads import ThreadChoice, choose_threads
from llmrun.prepare.loading import Loading
from llmrun.prepare.settings import SHORT_CTX, ContextWish, Room, auto_n_ctx

if TYPE_CHECKING:
    from llmrun.plan.make import Plan


def pick_threads(wish: ContextWish, before: CpuReading, *, seed_given: bool) -> ThreadChoice:
    """Threads for the whole run, from the load seen since `before` (taken ahead of the model load)."""
    cores = read_cores()
    busy = CpuReading.now().busy_cores_since(before, cores.cpus)
    return choose_threads(cores, busy, wish.n_threads, seed_given)


def settle(loading: Loading, wish: ContextWish, n_prompt: int, max_tokens: int | None) -> "Plan":
    """The context for a prompt of `n_prompt` tokens. Raises UsageError where it does not fit the context."""
    limit = loading.n_ctx_limit(wish)
    n_ctx = wish.n_ctx or auto_n_ctx(n_prompt, max_tokens, limit)
    if n_prompt >= n_ctx:
        room = auto_n_ctx(n_prompt, max_tokens, 0)
        larger = f"-c {min(room, limit)} makes room for it, -c auto does so by itself"
        shorter = "shorten the prompt: it is longer than any context of this model"
        raise UsageError(
            f"the prompt has {n_prompt} tokens, the context holds {n_ctx}", larger if n_prompt < limit else shorter
        )
    least = auto_n_ctx(n_prompt, min(SHORT_CTX, SHORT_CTX if max_tokens is None else max_tokens), 0)
    return loading.settle(Room(n_ctx, min(n_ctx, least)), wish)


def open_engine(model: Model, wish: ContextWish, plan: "Plan", threads: ThreadChoice, n_seq_max: int = 1) -> Engine:
    """A context as planned, and the loop over it."""
    settings = ContextSettings(
        n_ctx=plan.n_ctx,
        n_batch=plan.n_batch,
        n_ubatch=plan.n_ubatch,
        n_seq_max=n_seq_max,
        n_threads=threads.n,
        kv_type=plan.kv_type,
        flash_attn=wish.flash_attn,
        kv_on_cpu=plan.kv_on_cpu,
        rope_scaling=wish.rope_scaling or "model",
        rope_scale=wish.rope_scale,
    )
    return Engine(Context(model, settings))
