"""`llmrun tokenize`: what a text is to a model, and back."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from llmrun.cli.answering import prompt as prompts
from llmrun.cli.options import OutputOptions, with_groups
from llmrun.cli.terminal import streams
from llmrun.cli.terminal.completion import first_word
from llmrun.errors import UsageError

if TYPE_CHECKING:
    from llmrun.prepare.loading import Loading
    from llmrun.report import Report


@with_groups
def command(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL [TEXT]...", show_default=False, autocompletion=first_word)
    ] = None,
    *,
    model: Annotated[str | None, typer.Option("-m", "--model", help="The model, instead of the first word.")] = None,
    file: Annotated[str | None, typer.Option("-f", "--file", help="Read the text from a file.")] = None,
    encoding: Annotated[str, typer.Option("--encoding", help="Encoding of the file or standard input.")] = "utf-8",
    ids: Annotated[bool, typer.Option("--ids", help="Only the ids, on one line.")] = False,
    count: Annotated[bool, typer.Option("--count", help="Only the number of tokens.")] = False,
    chat: Annotated[bool, typer.Option("--chat", help="The text as a chat message, template included.")] = False,
    system: Annotated[str | None, typer.Option("-s", "--system", help="With --chat: the system message.")] = None,
    template: Annotated[str | None, typer.Option("--template", help="With --chat: NAME|FILE.")] = None,
    special: Annotated[bool, typer.Option("--special", help="Control tokens are read and shown as such.")] = False,
    decode: Annotated[bool, typer.Option("--decode", help="Ids in, text out.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    output: OutputOptions,
) -> None:
    """Show the tokens of a text (an argument, a file or standard input), or the text of token ids.

    llmrun tokenize smollm2 "Hello there"

    llmrun tokenize smollm2 --ids < a.txt | llmrun tokenize smollm2 --decode > the-same.txt
    """
    words = list(words or [])
    reference = model if model is not None else (words.pop(0) if words else "smollm2")
    if sum((ids, count, decode, json)) > 1:
        raise UsageError("--ids, --count, --decode and --json exclude each other")
    text = _text(words, file, encoding)
    from llmrun.cli.terminal.reporting import StderrReport
    from llmrun.engine.model import ModelSettings
    from llmrun.prepare.loading import Loading, find

    report = StderrReport()
    loading = Loading(find(reference, report), ModelSettings(vocab_only=True), report)
    vocab = loading.model().vocab
    if decode:
        _write(vocab.detokenize(_parse_ids(text), special=special))
        return
    tokens = _tokens(loading, text, chat, special, system, template, report)
    pieces = [vocab.piece(token, special=True).decode("utf-8", "replace") for token in tokens]
    _show(tokens, pieces, ids=ids, count=count, json=json)


def _text(words: list[str], file: str | None, encoding: str) -> str:
    """The text from exactly one place, to the last byte."""
    if words:
        return prompts.typed(" ".join(words), "the argument")
    if file is not None:
        return prompts.read_file(file, encoding)
    if streams.is_terminal(sys.stdin):
        raise UsageError("there is no text", "give it as an argument, with -f, or on standard input")
    return prompts.read_stdin(encoding)


def _tokens(
    loading: "Loading",
    text: str,
    chat: bool,
    special: bool,
    system: str | None,
    template: str | None,
    report: "Report",
) -> list[int]:
    from llmrun.chat.conversation import Message
    from llmrun.errors import TemplateError
    from llmrun.prepare.prompt import chat_prompt, raw_prompt, tokenize

    vocab = loading.model().vocab
    if not chat:
        return tokenize(raw_prompt(text, loading.header, parse_special=special), vocab)
    messages = ([Message("system", system)] if system else []) + [Message("user", text)]
    prompt = chat_prompt(loading.info, loading.header, messages, report, wanted=template)
    if prompt is None:
        raise TemplateError("this model has no chat template", "give one with --template")
    return tokenize(prompt, vocab)


def _parse_ids(text: str) -> list[int]:
    """Ids between spaces, commas or brackets. Raises UsageError."""
    words = text.replace(",", " ").replace("[", " ").replace("]", " ").split()
    try:
        return [int(word) for word in words]
    except ValueError as error:
        raise UsageError(f"--decode takes token ids: {error}") from None


def _show(tokens: list[int], pieces: list[str], *, ids: bool, count: bool, json: bool) -> None:
    if json:
        from llmrun.cli.output import print_json

        print_json({"count": len(tokens), "ids": tokens, "pieces": pieces})
    elif count:
        _write(f"{len(tokens)}\n".encode())
    elif ids:
        _write((" ".join(map(str, tokens)) + "\n").encode())
    else:
        lines = (f"{token:7d}  {streams.shown(repr(piece))}\n" for token, piece in zip(tokens, pieces, strict=True))
        _write("".join(lines).encode("utf-8", "replace"))


def _write(raw: bytes) -> None:
    if streams.is_terminal(sys.stdout):
        sys.stdout.write(streams.shown(raw.decode("utf-8", "replace")))
        sys.stdout.flush()
    else:
        sys.stdout.buffer.write(raw)
        sys.stdout.buffer.flush()
