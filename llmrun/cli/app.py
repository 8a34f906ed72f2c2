"""The table of commands, and the one place where errors become lines and exit statuses."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from llmrun import __version__
from llmrun.cli.options import BROKEN_PIPE
from llmrun.cli.terminal import completion, streams
from llmrun.errors import LlmrunError

# name -> (module of llmrun.cli, its line in `llmrun --help`). Only the module of the command at hand is imported.
COMMANDS = {
    "run": ("run", "Answer one prompt."),
    "chat": ("chat", "Hold a conversation."),
    "pull": ("pull", "Fetch models to this machine."),
    "list": ("list", "List the models on this machine."),
    "show": ("show", "Show what a model is."),
    "plan": ("plan", "Show what fits this machine: contexts, cache types, layers on GPUs."),
    "rm": ("rm", "Delete models from this machine."),
    "alias": ("alias", "Give a model a name of your own."),
    "bench": ("bench", "Measure how fast models are here."),
    "convert": ("convert", "Turn a Hugging Face checkpoint into a GGUF file."),
    "quantize": ("quantize", "Make a smaller file of a model."),
    "imatrix": ("imatrix", "Find out which weights of a model matter."),
    "perplexity": ("perplexity", "Measure how well a model predicts a text."),
    "report": ("report", "Compare files of a model by size, quality and speed."),
    "tokenize": ("tokenize", "Show a text's tokens, or the text of tokens."),
    "doctor": ("doctor", "Show what this machine and this build are, and what to change."),
    "rpc-worker": ("rpc_worker", "Offer this machine to a model that another one runs."),
}


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit status."""
    try:
        status = _build(arguments)(args=list(arguments), prog_name="llmrun", standalone_mode=False)
        sys.stdout.flush()
        return int(status or 0)
    except LlmrunError as error:
        _explain(error.message, error.hint)
        _trace(arguments)
        return error.exit_status
    except BrokenPipeError:
        streams.abandon(sys.stdout)
        return BROKEN_PIPE
    except KeyboardInterrupt:
        streams.say("interrupted")
        return 130
    except typer.Abort:
        return 130
    except Exception as error:
        return _unexpected(error, arguments)


def _unexpected(error: Exception, arguments: Sequence[str]) -> int:
    # Typer keeps the class of its usage errors private; they are what can format a message for the user.
    format_message = getattr(error, "format_message", None)
    if format_message is not None:
        command = next((word for word in arguments if word in COMMANDS), "")
        _explain(_first_lower(format_message()), f"llmrun {command} --help".replace("  ", " "))
        return int(getattr(error, "exit_code", 2))
    _explain(f"{type(error).__name__}: {error}", "this is a fault in llmrun: --debug shows where it happened")
    _trace(arguments)
    return 1


def _explain(message: str, hint: str) -> None:
    streams.say(f"error: {streams.shown(' '.join(message.split()))}")
    if hint:
        streams.say(f"hint: {streams.shown(hint)}")


def _trace(arguments: Sequence[str]) -> None:
    if "--debug" in arguments or os.environ.get("LLMRUN_DEBUG"):
        import traceback

        traceback.print_exc()


def _first_lower(text: str) -> str:
    text = text.rstrip(".")
    return text[:1].lower() + text[1:]


def _build(arguments: Sequence[str]) -> typer.Typer:
    """The Typer app with the command at hand. The others have a name and a help line only: building the options
    of all of them costs more than the rest of the start-up."""
    app = typer.Typer(
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_top)
    words = arguments
    if "_LLMRUN_COMPLETE" in os.environ:
        words = completion.typed_words()
    chosen = next((word for word in words if not word.startswith("-")), "")
    for name, (module, summary) in COMMANDS.items():
        function = _command(module) if name == chosen else _placeholder
        app.command(name, short_help=summary, no_args_is_help=False)(function)
    return app


def _command(module: str) -> Callable[..., Any]:
    function: Callable[..., Any] = importlib.import_module(f"llmrun.cli.{module}").command
    return function


def _placeholder() -> None:
    """Stands in the help list for a command that is not the one being run."""


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"llmrun {__version__}")
        raise typer.Exit()


def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Run quantized language models on the machine in front of you."""
