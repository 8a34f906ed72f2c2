"""What the user types: one message at a time, with history, completion, multi-line text and an editor."""

from collections.abc import Callable, Iterable
from typing import Any

from llmrun import paths

QUOTES = '"""'


class Leave(Exception):
    """The user wants to go: Ctrl-D, or Ctrl-C twice at an empty prompt."""


def unfinished(text: str) -> bool:
    """Whether Enter goes on with the message: an open triple quote, or a backslash at the end of the line."""
    if text.lstrip().startswith(QUOTES):
        inner = text.lstrip()[len(QUOTES) :]
        return not inner.rstrip().endswith(QUOTES)
    return text.endswith("\\")


def message(text: str) -> str:
    """The message that was typed, without the marks of how it was typed."""
    stripped = text.strip()
    if stripped.startswith(QUOTES):
        return stripped.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")
    return text.replace("\\\n", "\n").strip()


class Prompter:
    """The prompt of a conversation. `complete` gives the continuations of a line: (text to insert, what is shown)."""

    def __init__(self, complete: Callable[[str], Iterable[tuple[str, int]]]) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import Completer, Completion
        from prompt_toolkit.history import FileHistory

        class Words(Completer):
            def get_completions(self, document: Any, _event: Any) -> Iterable[Completion]:
                for word, back in complete(document.text_before_cursor):
                    yield Completion(word, start_position=-back)

        paths.state_dir().mkdir(parents=True, exist_ok=True)
        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(str(paths.state_dir() / "chat_history")),
            completer=Words(),
            complete_while_typing=False,
            multiline=True,
            prompt_continuation="... ",
            key_bindings=self._keys(),
            enable_open_in_editor=False,
            tempfile_suffix=".md",
        )
        self._interrupted = False

    def read(self, start: str = "") -> str:
        """The next message, `start` typed already. Raises Leave."""
        while True:
            try:
                text = self._session.prompt(">>> ", default=start)
            except KeyboardInterrupt:
                if self._interrupted:
                    raise Leave from None
                self._interrupted = True
                print("(Ctrl-C again, Ctrl-D or /bye leaves)")
                continue
            except EOFError:
                raise Leave from None
            self._interrupted = False
            return message(text)

    @staticmethod
    def _keys() -> Any:
        from prompt_toolkit.key_binding import KeyBindings

        keys = KeyBindings()

        @keys.add("enter")
        def _enter(event: Any) -> None:
            buffer = event.current_buffer
            if unfinished(buffer.text):
                buffer.insert_text("\n")
            else:
                buffer.validate_and_handle()

        @keys.add("c-c")
        def _interrupt(event: Any) -> None:
            if event.current_buffer.text:
                event.current_buffer.reset()
            else:
                event.app.exit(exception=KeyboardInterrupt)

        @keys.add("c-g")
        def _editor(event: Any) -> None:
            event.current_buffer.open_in_editor()

        return keys
