"""One prompt through one model: load, render, generate, and say how it went. Shared by what answers once."""

import sys
from dataclasses import dataclass
from typing import Any

from llmrun.chat.conversation import Message
from llmrun.cli import streams
from llmrun.cli.options import LoadOptions, OutputOptions, SamplingOptions, count
from llmrun.cli.output import print_json
from llmrun.cli.reporting import StderrReport
from llmrun.cli.stream import Streamed, stats_line, stream
from llmrun.engine import capi
from llmrun.engine.engine import Engine
from llmrun.engine.model import ModelSettings
from llmrun.engine.params import SamplingParams, check_params
from llmrun.engine.request import Request
from llmrun.errors import UsageError
from llmrun.machine.load import CpuReading
from llmrun.machine.threads import ThreadChoice
from llmrun.models.catalog import Catalog
from llmrun.prepare.answer import answer, model_facts, present
from llmrun.prepare.loading import Loading, find, open_catalog
from llmrun.prepare.opening import open_engine, pick_n_ctx, pick_threads
from llmrun.prepare.prompt import Prompt, chat_prompt, raw_prompt, tokenize
from llmrun.prepare.settings import ContextWish, check_flash_attn, merge_sampling, parse_kv_type


@dataclass(frozen=True)
class AnswerOptions:
    """How one prompt is turned into an answer, and what is shown of it."""

    system: str | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    raw: bool = False
    special: bool = True
    json: bool = False
    stream: bool = True
    show_prompt: bool = False
    show_tokens: bool = False
    template: str | None = None


EXIT_STATUS = {"stop": 0, "length": 0, "context": 0, "interrupted": 130, "error": 1}


def answer_prompt(
    reference: str | None,
    text: str,
    options: AnswerOptions,
    sampling: SamplingOptions,
    load: LoadOptions,
    output: OutputOptions,
) -> int:
    """Print the answer to `text` and return the exit status."""
    before = CpuReading.now()
    wish = context_wish(load)
    report = StderrReport()
    if output.verbose:
        capi.log.sink = lambda _level, line: streams.say(streams.shown(line))
    catalog = open_catalog()
    found = find(reference or default_reference(catalog), report, catalog)
    loading = Loading(found, model_settings(load), report)
    params = merge_sampling(vars(sampling), found.defaults, loading.info.sampling)
    check_params(params)
    prompt = build_prompt(loading, text, options, report)
    model = loading.model()
    tokens = tokenize(prompt, model.vocab)
    _show(prompt, tokens, options, model.vocab.piece)
    n_ctx = pick_n_ctx(wish, len(tokens), options.max_tokens, loading.info.n_ctx_train)
    threads = pick_threads(wish, before, seed_given=sampling.seed is not None)
    if output.verbose:
        streams.say(f"{threads.n} threads: {threads.reason}")
    engine = open_engine(model, wish, n_ctx, threads)
    request = Request(tuple(tokens), params, options.max_tokens, options.stop)
    streamed = _print_answer(engine, request, options, report)
    _explain_end(streamed, options, report, n_ctx)
    if options.json:
        settings = run_settings(params, wish, engine, threads, load)
        facts = model_facts(loading.info, found.name, str(loading.path))
        notes = tuple(report.notes)
        result = answer(streamed.finished, streamed.text, facts, settings, loading.load_s, notes)
        print_json(present(result))
    if not output.quiet:
        where = f"cpu {threads.n} thread{'s' if threads.n > 1 else ''}"
        line = stats_line(streamed.finished, loading.load_s, engine.n_ctx_seq, where)
        streams.say(streams.dim(line, sys.stderr))
    return EXIT_STATUS[streamed.finished.reason]


def default_reference(catalog: Catalog) -> str:
    """LLMRUN_MODEL, then `default` in the user's models.toml, then smollm2."""
    import os

    return os.environ.get("LLMRUN_MODEL") or catalog.default or "smollm2"


def build_prompt(loading: Loading, text: str, options: AnswerOptions, report: StderrReport) -> Prompt:
    """The chat template's rendering of system message and text; the bare text with --raw or without a template."""
    if options.raw:
        return raw_prompt(text, loading.header, parse_special=options.special)
    system = options.system if options.system is not None else loading.found.defaults.get("system")
    messages = [Message("system", str(system))] if system else []
    messages.append(Message("user", text))
    prompt = chat_prompt(loading.info, loading.header, messages, options.template, report)
    if prompt is not None:
        return prompt
    report.note("this model has no chat template: the prompt is continued as it is (--template gives one)")
    return raw_prompt("\n\n".join(message.content for message in messages), loading.header, parse_special=False)


def model_settings(load: LoadOptions) -> ModelSettings:
    layers = count(load.gpu_layers, "gpu-layers", ("auto", "all"))
    return ModelSettings(layers if isinstance(layers, int) else -1, not load.no_mmap, load.mlock)


def context_wish(load: LoadOptions) -> ContextWish:
    """The user's wishes for the context. Raises UsageError for what means nothing."""
    n_ctx = count(load.ctx, "ctx", ("auto",))
    for name, value in (("threads", load.threads), ("batch", load.batch), ("ubatch", load.ubatch)):
        if value is not None and not 1 <= value <= 2**20:
            raise UsageError(f"--{name} {value} is not between 1 and {2**20}")
    kv_type = parse_kv_type(load.kv_type or "f16")
    if load.cache_type_k or load.cache_type_v:
        kv_type = parse_kv_type(f"{load.cache_type_k or kv_type[0]},{load.cache_type_v or kv_type[1]}")
    if n_ctx == 0:
        raise UsageError("--ctx 0 holds no prompt", "-c auto chooses a size")
    return ContextWish(
        n_ctx=n_ctx if isinstance(n_ctx, int) else None,
        n_threads=load.threads,
        n_batch=load.batch or max(512, load.ubatch or 0),
        n_ubatch=load.ubatch or 512,
        flash_attn=check_flash_attn(load.flash_attn or "auto"),
        kv_type=kv_type,
    )


def run_settings(
    params: SamplingParams, wish: ContextWish, engine: Engine, threads: ThreadChoice, load: LoadOptions
) -> dict[str, Any]:
    """What it takes to repeat the run, under the names of the flags."""
    return dict(vars(params)) | {
        "n_ctx": engine.n_ctx_seq,
        "threads": threads.n,
        "gpu_layers": load.gpu_layers or "auto",
        "kv_type": ",".join(dict.fromkeys(wish.kv_type)),
        "flash_attn": wish.flash_attn,
        "batch": wish.n_batch,
        "ubatch": wish.n_ubatch,
    }


def _show(prompt: Prompt, tokens: list[int], options: AnswerOptions, piece: Any) -> None:
    if options.show_prompt:
        streams.say(streams.shown(prompt.text))
    if options.show_tokens:
        for token in tokens:
            streams.say(f"{token:7d} {streams.shown(repr(piece(token, special=True).decode('utf-8', 'replace')))}")


def _print_answer(engine: Engine, request: Request, options: AnswerOptions, report: StderrReport) -> Streamed:
    out = streams.Answer()
    if not options.stream:
        streamed = stream(engine, request, lambda _text: None, report)
        if not options.json:
            out.write(streamed.text)
    else:
        streamed = stream(engine, request, out.write, report)
    if out.terminal and not options.json:
        out.end()
    return streamed


def _explain_end(streamed: Streamed, options: AnswerOptions, report: StderrReport, n_ctx: int) -> None:
    finished = streamed.finished
    if finished.reason == "length":
        report.note(f"the answer was cut at {len(finished.tokens)} tokens (--max-tokens)")
    elif finished.reason == "context":
        report.note(f"the answer was cut where the context of {n_ctx} tokens ended (-c makes it larger)")
    elif finished.reason == "interrupted":
        report.note("interrupted")
    elif finished.reason == "error":
        report.note(f"error: {finished.error}")
