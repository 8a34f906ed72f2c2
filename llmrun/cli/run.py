"""`llmrun run`: one prompt, one answer."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from llmrun.cli.answering import prompt as prompts
from llmrun.cli.options import (
    AdapterOptions,
    LoadOptions,
    OutputOptions,
    SamplingOptions,
    ShapeOptions,
    setting,
    with_groups,
)
from llmrun.cli.terminal import streams
from llmrun.cli.terminal.completion import any_model, first_word
from llmrun.errors import UsageError

if TYPE_CHECKING:
    from llmrun.cli.answering.flow import Groups


@with_groups
def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL [PROMPT]...", show_default=False, autocompletion=first_word),
    ] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option("-m", "--model", help="The model, instead of the first word.", autocompletion=any_model),
    ] = None,
    system: Annotated[str | None, setting("-s --system", "System message.")] = None,
    file: Annotated[list[str] | None, typer.Option("-f", "--file", help="A file to put before the prompt.")] = None,
    encoding: Annotated[str, typer.Option("--encoding", help="Encoding of files and standard input.")] = "utf-8",
    max_tokens: Annotated[int | None, setting("-n --max-tokens --n-predict", "Most tokens to generate.")] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="End the answer at this text; repeatable.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template: the prompt as it is.")] = False,
    no_special: Annotated[bool, typer.Option("--no-special", help="With --raw: control tokens are text.")] = False,
    template: Annotated[str | None, setting("--template", "Chat template.", metavar="NAME|FILE")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    no_stream: Annotated[bool, typer.Option("--no-stream", help="Print the answer when it is whole.")] = False,
    show_prompt: Annotated[bool, typer.Option("--show-prompt", help="Print the prompt on stderr.")] = False,
    show_tokens: Annotated[bool, typer.Option("--show-tokens", help="Print its token ids on stderr.")] = False,
    prefix: Annotated[str, typer.Option("--prefix", help="The answer begins with this text.")] = "",
    reasoning: Annotated[str, setting("--reasoning", "Of a reasoning model.", metavar="show|hide|only")] = "show",
    logprobs: Annotated[int, typer.Option("--logprobs", help="With --json: this many likeliest per token.")] = 0,
    sampling: SamplingOptions,
    shape: ShapeOptions,
    adapter: AdapterOptions,
    load: LoadOptions,
    output: OutputOptions,
) -> None:
    """Answer one prompt: files, then standard input, then the words, in that order.

    llmrun run smollm2 "Why is the sky blue?"

    cat notes.txt | llmrun run smollm2 "Summarise this"
    """
    from llmrun.cli.answering.flow import AnswerOptions, Groups, answer_prompt

    groups = Groups(sampling, shape, adapter, load, output)
    options = AnswerOptions(
        system=None if system is None else prompts.typed(system, "--system"),
        max_tokens=_limit(max_tokens),
        stop=tuple(prompts.typed(text, "--stop") for text in stop or ()),
        raw=raw,
        special=not no_special,
        json=json,
        stream=not (json or no_stream),
        show_prompt=show_prompt,
        show_tokens=show_tokens,
        template=template,
        prefix=prompts.typed(prefix, "--prefix"),
        reasoning=reasoning,
        logprobs=logprobs,
    )
    if not 0 <= logprobs <= 1000:
        raise UsageError(f"--logprobs {logprobs} is not between 0 and 1000")
    words = list(words or [])
    reference = model if model is not None else (words.pop(0) if words else None)
    if not words and not file and streams.is_terminal(sys.stdin) and streams.is_terminal(sys.stdout):
        raise typer.Exit(_chat(reference, groups, system, _limit(max_tokens), template, reasoning))
    text = prompts.gather(file or [], words, encoding)
    if not text.strip():
        raise UsageError("the prompt is empty", 'llmrun run MODEL "PROMPT", or pipe text into it')
    raise typer.Exit(answer_prompt(reference, text, options, groups))


def _chat(
    reference: str | None,
    groups: "Groups",
    system: str | None,
    max_tokens: int | None,
    template: str | None,
    reasoning: str,
) -> int:
    """On a terminal, without a prompt, `run` is a conversation."""
    from llmrun.chat.session import SessionFile
    from llmrun.cli.repl.loop import converse
    from llmrun.cli.repl.talk import TalkSettings

    settings = TalkSettings(groups, max_tokens, template, None, "shift", reasoning)
    return converse(reference, SessionFile.fresh(), settings, system=system, resume=False, plain=False)


def _limit(max_tokens: int | None) -> int | None:
    """-1 is no limit, as in llama.cpp. Raises UsageError for other negative numbers."""
    if max_tokens is not None and max_tokens < -1:
        raise UsageError(f"--max-tokens {max_tokens} is negative")
    return None if max_tokens == -1 else max_tokens
