"""From a loaded model and a prompt's length to a running engine: context size, threads, then the context."""

from llmrun.engine.context import Context, ContextSettings
from llmrun.engine.engine import Engine
from llmrun.engine.model import Model
from llmrun.errors import UsageError
from llmrun.machine.cores import read_cores
from llmrun.machine.load import CpuReading
from llmrun.machine.threads import ThreadChoice, choose_threads
from llmrun.prepare.settings import ContextWish, auto_n_ctx


def pick_threads(wish: ContextWish, before: CpuReading, *, seed_given: bool) -> ThreadChoice:
    """Threads for the whole run, from the load seen since `before` (taken ahead of the model load)."""
    cores = read_cores()
    busy = CpuReading.now().busy_cores_since(before, cores.cpus)
    return choose_threads(cores, busy, wish.n_threads, seed_given)


def pick_n_ctx(wish: ContextWish, n_prompt: int, max_tokens: int | None, n_ctx_train: int) -> int:
    """The context's size in tokens. Raises UsageError where the prompt does not fit it."""
    n_ctx = wish.n_ctx or auto_n_ctx(n_prompt, max_tokens, n_ctx_train)
    if n_ctx_train and n_ctx > n_ctx_train:
        raise UsageError(
            f"-c {n_ctx} is more than the {n_ctx_train} tokens the model was trained for",
            f"-c {n_ctx_train} is the most it takes",
        )
    if n_prompt >= n_ctx:
        room = auto_n_ctx(n_prompt, max_tokens, 0)
        larger = f"-c {min(room, n_ctx_train)} makes room for it, -c auto does so by itself"
        shorter = "shorten the prompt: it is longer than any context of this model"
        raise UsageError(
            f"the prompt has {n_prompt} tokens, the context holds {n_ctx}",
            larger if n_prompt < n_ctx_train else shorter,
        )
    return n_ctx


def open_engine(model: Model, wish: ContextWish, n_ctx: int, threads: ThreadChoice, n_seq_max: int = 1) -> Engine:
    """A context of `n_ctx` cells, and the loop over it."""
    settings = ContextSettings(
        n_ctx=n_ctx,
        n_batch=wish.n_batch,
        n_ubatch=wish.n_ubatch,
        n_seq_max=n_seq_max,
        n_threads=threads.n,
        kv_type=wish.kv_type,
        flash_attn=wish.flash_attn,
    )
    return Engine(Context(model, settings))
