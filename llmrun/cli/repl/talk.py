"""A conversation with a model, turn by turn. Prints nothing: text goes to a callback, remarks to a Report."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from llmrun import paths
from llmrun.chat.conversation import Conversation
from llmrun.chat.session import SessionFile
from llmrun.cli.answering import wishes
from llmrun.cli.answering.flow import Groups
from llmrun.cli.answering.stream import Streamed, stream
from llmrun.engine import capi
from llmrun.engine.adapter import apply_adapters, check_adapter
from llmrun.engine.engine import Engine
from llmrun.engine.params import MAX_SEED, SamplingParams
from llmrun.engine.prefix import removed_span
from llmrun.engine.prompt_cache import PromptCache
from llmrun.engine.request import Request
from llmrun.errors import TemplateError, UsageError
from llmrun.gguf.header import open_header
from llmrun.machine.load import CpuReading
from llmrun.prepare.loading import Loading, find
from llmrun.prepare.opening import open_engine, pick_threads
from llmrun.prepare.prompt import Prompt, chat_prompt, visible_tokens
from llmrun.prepare.settings import ContextWish, Room
from llmrun.prepare.transcript import Transcript
from llmrun.report import Report

ROOM = Room(n_ctx=32768, n_ctx_min=2048)  # a conversation's, where the model was trained for as many
ON_FULL = ("shift", "recompute", "stop")


@dataclass
class TalkSettings:
    """What may change between turns. `groups` are the command line's settings."""

    groups: Groups
    max_tokens: int | None = None
    template: str | None = None
    thinking: bool | None = None
    on_full: str = "shift"
    reasoning: str = "show"


class Talk:
    """One conversation over one model, which can be exchanged."""

    def __init__(self, reference: str, settings: TalkSettings, session: SessionFile, report: Report) -> None:
        if settings.on_full not in ON_FULL:
            raise UsageError(f"--on-full {settings.on_full} is none of {', '.join(ON_FULL)}")
        self.settings = settings
        self.session = session
        self.report = report
        self.conversation = Conversation()
        self.transcript = Transcript()
        self.last: Streamed | None = None
        self._retries = 0
        self._cache = PromptCache(paths.cache_dir() / "prompts")
        self._saving: threading.Thread | None = None
        self._load(reference)

    def _load(self, reference: str) -> None:
        before = CpuReading.now()
        groups = self.settings.groups
        found = find(reference, self.report)
        wish = wishes.context_wish(groups.load)
        self.loading = Loading(found, wishes.model_settings(groups.load), self.report, wish, ROOM)
        if self.loading.info.chat_template is None and self._wanted_template() is None:
            raise TemplateError(
                f"{found.name} has no chat template, so there is no way to hold a conversation with it",
                "give one with --template (chatml, a name or a file), or let it continue text: llmrun run",
            )
        self.reference = reference
        self.model = self.loading.model()
        self.threads = pick_threads(wish, before, seed_given=groups.sampling.seed is not None)
        self._open()

    def _open(self) -> None:
        """A context by the settings at hand."""
        groups = self.settings.groups
        wish = wishes.context_wish(groups.load)
        plan = self.loading.settle(ROOM, wish)
        self.engine: Engine = open_engine(self.model, _for_long_contexts(wish, plan.kv_type[1]), plan, self.threads)
        adapters = wishes.adapters(groups.adapter)
        for adapter in adapters:
            check_adapter(open_header(adapter.path), self.loading.header, adapter.path)
        apply_adapters(self.engine.context, adapters)
        self.transcript = Transcript()

    def reopen(self) -> None:
        """Make the context anew, after a context setting changed."""
        self.wait()
        self.engine.close()
        self.engine.context.close()
        self._open()

    def switch(self, reference: str) -> None:
        """Go on with another model; the history stays. The old model stays where the new one does not load."""
        self.wait()
        old = (self.engine, self.model)
        self._load(reference)
        old[0].close()
        old[0].context.close()
        old[1].close()
        self.session.append("model", model=reference)

    def _wanted_template(self) -> str | None:
        return self.settings.template or str(self.loading.found.defaults.get("template", "")) or None

    @property
    def params(self) -> SamplingParams:
        """The sampling settings of the next turn; a retry takes another seed."""
        groups = self.settings.groups
        grammar = wishes.grammar(groups.shape)
        defaults = self.loading.found.defaults
        params = wishes.sampling_params(groups.sampling, grammar, defaults, self.loading.info.sampling)
        return params._replace(seed=(params.seed + self._retries) % (MAX_SEED + 1))

    def prompt(self) -> Prompt:
        """The conversation as the model will read it. Raises TemplateError."""
        made = chat_prompt(
            self.loading.info,
            self.loading.header,
            self.conversation.messages,
            self.report,
            wanted=self._wanted_template(),
            thinking=self.settings.thinking,
        )
        assert made is not None  # without a template no model was loaded
        return made

    def say(self, text: str) -> None:
        """Take in the user's message, on disk before anything is computed."""
        self._retries = 0
        self.record("user", content=text)

    def retry(self) -> None:
        """Forget the last answer; the next one has another seed."""
        self._retries += 1
        self.record("retry")

    def record(self, kind: str, **values: object) -> None:
        """Something happened to the conversation: on disk, then in memory."""
        self.session.append(kind, **values)
        self.conversation.apply({"kind": kind, **values})

    def answer(self, prompt: Prompt, visible: frozenset[str], on_text: Callable[[str], None]) -> Streamed:
        """Generate the answer to what was said. `visible` are control tokens to be given out as text.

        The answer is not recorded yet: the caller knows what of the text is reasoning."""
        self.wait()
        params = self.params
        tokens = self.transcript.tokens_of(prompt, self.model.vocab)
        prompt, tokens = self._make_room(prompt, tokens)
        request = Request(
            tokens=tuple(tokens),
            sampling=params,
            max_tokens=self.settings.max_tokens,
            stop=prompt.stop,
            visible=visible_tokens(visible, self.loading.header),
        )
        streamed = stream(self.engine, request, on_text, self.report)
        self.transcript.remember(prompt, tokens, streamed.text, streamed.finished.tokens)
        self.last = streamed
        return streamed

    def _make_room(self, prompt: Prompt, tokens: list[int]) -> tuple[Prompt, list[int]]:
        """Leave out the oldest exchanges until a quarter of the context (or what --max-tokens needs) is free."""
        n_ctx = self.engine.n_ctx_seq
        wanted = self.settings.max_tokens if self.settings.max_tokens is not None else n_ctx // 4
        limit = n_ctx - min(wanted, n_ctx // 4) - 1
        while len(tokens) > limit:
            if self.settings.on_full == "stop":
                raise UsageError(
                    f"the context of {n_ctx} tokens is full", "/clear frees it, /set ctx N makes it larger"
                )
            left_out = self.conversation.leave_out_oldest()
            if not left_out:
                raise UsageError(
                    f"the message needs {len(tokens)} tokens, the context holds {n_ctx} with the answer",
                    "/set ctx N makes it larger",
                )
            first_line = " ".join(left_out.split())[:40]
            self.report.note(f'the context is full: the exchange that began with "{first_line}" left the prompt')
            prompt = self.prompt()
            tokens = self._shifted(self.transcript.tokens_of(prompt, self.model.vocab))
        return prompt, tokens

    def _shifted(self, tokens: list[int]) -> list[int]:
        """Move the cells of what stays, where that is wanted and the architecture can."""
        if self.settings.on_full == "shift":
            span = removed_span(tokens, self.engine.resident())
            if span is not None:
                self.engine.forget_span(*span)
        return tokens

    def save_state(self) -> None:
        """Keep the KV state on disk, while the user reads and types."""
        self.wait()
        owner, context, tokens = self.session.name, self.engine.context, self.engine.resident()
        self._saving = threading.Thread(target=self._cache.save, args=(owner, context, 0, tokens))
        self._saving.start()

    def wait(self) -> None:
        """The context is used by one thread at a time."""
        if self._saving is not None:
            self._saving.join()
            self._saving = None

    def resume(self) -> int:
        """Take up the session from disk; returns how many tokens of KV state came with it."""
        self.conversation, _ = self.session.load(self.report)
        tokens = self._cache.restore(self.session.name, self.engine.context, 0)
        if tokens:
            self.engine.adopt(tokens)
        return len(tokens)


def _for_long_contexts(wish: ContextWish, v_type: str) -> ContextWish:
    """On CPUs llama.cpp's flash attention costs more with every token of context: measured with smollm2 on 2 cores at
    1,024 tokens, decode 65 against 88 tok/s, and turn 10's TTFT 1.5 against 1.2 times turn 2's. A quantized V cache
    needs it all the same."""
    if wish.flash_attn == "auto" and v_type in ("f32", "f16", "bf16") and len(capi.devices()) == 1:
        return wish._replace(flash_attn="off")
    return wish
