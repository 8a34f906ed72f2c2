"""One prompt through one model: load, render, generate, and say how it went."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from llmrun.chat.conversation import Message
from llmrun.chat.reasoning import ReasoningSplitter
from llmrun.cli.answering import ahead, wishes
from llmrun.cli.answering.display import Display
from llmrun.cli.answering.stream import Streamed, stats_line, stream
from llmrun.cli.options import AdapterOptions, LoadOptions, OutputOptions, SamplingOptions, ShapeOptions
from llmrun.cli.terminal import streams
from llmrun.cli.terminal.reporting import StderrReport
from llmrun.engine import capi
from llmrun.engine.adapter import apply_adapters, check_adapter
from llmrun.engine.engine import Engine
from llmrun.engine.params import SamplingParams
from llmrun.engine.request import Request
from llmrun.engine.sampling import check_sampling
from llmrun.errors import LlmrunError
from llmrun.gguf.header import open_header
from llmrun.machine.load import CpuReading
from llmrun.machine.threads import ThreadChoice
from llmrun.models.catalog import Catalog, load_catalog
from llmrun.prepare.loading import Loading, find
from llmrun.prepare.opening import open_engine, pick_threads, settle
from llmrun.prepare.prompt import Prompt, chat_prompt, raw_prompt, tokenize, visible_tokens
from llmrun.prepare.settings import ContextWish, room_for_text

if TYPE_CHECKING:
    from llmrun.plan.make import Plan

EXIT_STATUS = {"stop": 0, "length": 0, "context": 0, "interrupted": 130, "error": 1}


class AnswerOptions(NamedTuple):
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
    prefix: str = ""
    reasoning: str = "show"
    logprobs: int = 0


class Groups(NamedTuple):
    """The option groups of the command line."""

    sampling: SamplingOptions
    shape: ShapeOptions
    adapter: AdapterOptions
    load: LoadOptions
    output: OutputOptions


def answer_prompt(reference: str | None, text: str, options: AnswerOptions, groups: Groups) -> int:
    """Print the answer to `text` and return the exit status."""
    before = CpuReading.now()
    adapters = wishes.adapters(groups.adapter)
    grammar = wishes.grammar(groups.shape)
    report = StderrReport()
    if groups.output.verbose:
        capi.log.sink = lambda _level, line: streams.say(streams.shown(line))
    catalog = load_catalog()
    found = find(reference or default_reference(catalog), report, catalog)
    options, groups = with_defaults(found.defaults, options, groups)
    wish = wishes.context_wish(groups.load)
    n_bytes = len((text + (options.system or "")).encode("utf-8", "replace"))
    room = room_for_text(n_bytes, options.max_tokens)
    loading = ahead.loading(found, wishes.model_settings(groups.load), report, wish, room)
    for adapter in adapters:
        check_adapter(open_header(adapter.path), loading.header, adapter.path)
    params = wishes.sampling_params(groups.sampling, grammar, found.defaults, loading.info.sampling)
    prompt = build_prompt(loading, text, options, report)
    vocab = loading.model().vocab
    tokens = tokenize(prompt, vocab)
    _show(prompt, tokens, options, vocab.piece)
    plan = settle(loading, wish, len(tokens), options.max_tokens)
    threads = pick_threads(wish, before, seed_given=groups.sampling.seed is not None)
    if groups.output.verbose:
        streams.say(f"{threads.n} threads: {threads.reason}")
    engine = open_engine(loading.model(), wish, plan, threads)
    apply_adapters(engine.context, adapters)
    display = _display(loading, prompt, options)
    streamed = _generate(engine, loading, prompt, tokens, params, options, display, report)
    status = _explain_end(streamed, bool(grammar), report, plan.n_ctx)
    if options.json:
        _print_object(streamed, display, loading, run_settings(params, wish, plan, threads), report)
    if not groups.output.quiet:
        line = stats_line(streamed.finished, loading.load_s, engine.n_ctx_seq, where(plan, threads))
        streams.say(streams.dim(line, sys.stderr))
    if streamed.finished.reason == "error" and not options.json:
        raise LlmrunError(streamed.finished.error, streamed.finished.hint)
    return status


def with_defaults(
    defaults: Mapping[str, Any], options: AnswerOptions, groups: Groups
) -> tuple[AnswerOptions, Groups]:
    """The catalogue's context, answer length, system message and template, where none was given."""
    options = options._replace(
        max_tokens=options.max_tokens if options.max_tokens is not None else defaults.get("max-tokens"),
        system=options.system if options.system is not None else defaults.get("system"),
        template=options.template or defaults.get("template"),
    )
    if groups.load.ctx is None and "ctx" in defaults:
        groups = groups._replace(load=groups.load._replace(ctx=str(defaults["ctx"])))
    return options, groups


def _generate(
    engine: Engine,
    loading: Loading,
    prompt: Prompt,
    tokens: list[int],
    params: SamplingParams,
    options: AnswerOptions,
    display: Display,
    report: StderrReport,
) -> Streamed:
    begun: list[int] = []
    if params.grammar:
        begun = loading.model().vocab.tokenize(options.prefix) if options.prefix else []
        check_sampling(params, loading.model().vocab, tuple(begun))
    request = Request(
        tokens=tuple(tokens),
        sampling=params,
        max_tokens=options.max_tokens,
        stop=options.stop + prompt.stop,
        logprobs=options.logprobs,
        answered=tuple(begun),
        visible=visible_tokens(display.control_tokens, loading.header),
    )
    display.feed(options.prefix)
    streamed = stream(engine, request, display.feed, report)
    display.finish()
    return streamed


def default_reference(catalog: Catalog) -> str:
    """LLMRUN_MODEL, then `default` in the user's models.toml, then smollm2."""
    return os.environ.get("LLMRUN_MODEL") or catalog.default or "smollm2"


def build_prompt(loading: Loading, text: str, options: AnswerOptions, report: StderrReport) -> Prompt:
    """The chat template's rendering of system message and text; the bare text with --raw or without a template."""
    if options.raw:
        return raw_prompt(text + options.prefix, loading.header, parse_special=options.special)
    messages = [Message("system", options.system)] if options.system else []
    messages.append(Message("user", text))
    prompt = chat_prompt(
        loading.info, loading.header, messages, report, wanted=options.template, prefix=options.prefix
    )
    if prompt is not None:
        return prompt
    report.note("this model has no chat template: the prompt is continued as it is (--template gives one)")
    whole = "\n\n".join(message.content for message in messages) + options.prefix
    return raw_prompt(whole, loading.header, parse_special=False)


def _display(loading: Loading, prompt: Prompt, options: AnswerOptions) -> Display:
    splitter = None if options.raw else ReasoningSplitter(loading.info.chat_template or "", prompt.text)
    return Display(splitter, options.reasoning, live=options.stream, silent=options.json)


def where(plan: "Plan", threads: ThreadChoice) -> str:
    """What computed: `cpu 2 threads`, or `CUDA0 33/33 layers`, or both."""
    cpu = f"cpu {threads.n} thread{'s' if threads.n > 1 else ''}"
    devices = [f"{use.name} {use.layers}/{plan.n_slots} layers" for use in plan.uses[1:]]
    return " + ".join(devices if plan.gpu_layers == plan.n_slots else [*devices, cpu])


def run_settings(params: SamplingParams, wish: ContextWish, plan: "Plan", threads: ThreadChoice) -> dict[str, Any]:
    """What it takes to repeat the run, under the names of the flags."""
    return params._asdict() | {
        "n_ctx": plan.n_ctx,
        "threads": threads.n,
        "gpu_layers": plan.gpu_layers,
        "kv_type": ",".join(dict.fromkeys(plan.kv_type)),
        "flash_attn": wish.flash_attn,
        "batch": plan.n_batch,
        "ubatch": plan.n_ubatch,
    }


def _show(prompt: Prompt, tokens: list[int], options: AnswerOptions, piece: Any) -> None:
    if options.show_prompt:
        streams.say(streams.shown(prompt.text))
    if options.show_tokens:
        for token in tokens:
            text = piece(token, special=True).decode("utf-8", "replace")
            streams.say(f"{token:7d}  {streams.shown(repr(text))}")


def _explain_end(streamed: Streamed, constrained: bool, report: StderrReport, n_ctx: int) -> int:
    """Say why the answer ended, where that is no end of its own; returns the exit status."""
    finished = streamed.finished
    status = EXIT_STATUS[finished.reason]
    if finished.reason == "length":
        report.note(f"the answer was cut at {len(finished.tokens)} tokens (--max-tokens)")
    elif finished.reason == "context":
        report.note(f"the answer was cut where the context of {n_ctx} tokens ended (-c makes it larger)")
    elif finished.reason == "interrupted":
        report.note("interrupted")
    if constrained and finished.reason in ("length", "context", "interrupted"):
        report.note("the answer is incomplete: it does not follow the grammar to its end")
        status = status or 1
    return status


def _print_object(
    streamed: Streamed, display: Display, loading: Loading, settings: dict[str, Any], report: StderrReport
) -> None:
    from llmrun.cli.output import print_json
    from llmrun.prepare.answer import answer, model_facts, named_logprobs, present

    piece = loading.model().vocab.piece
    result = answer(
        streamed.finished,
        display.answer,
        model_facts(loading.info, loading.found.name, str(loading.path)),
        settings,
        loading.load_s,
        tuple(report.notes),
        reasoning=display.reasoning or None,
        logprobs=named_logprobs(streamed.logprobs, piece) if streamed.logprobs else None,
    )
    print_json(present(result))
