"""Ctrl-C, wherever it falls."""

import ctypes
import signal

import pytest

from llmrun.cli.terminal.interrupts import on_interrupt

CALLBACK = ctypes.CFUNCTYPE(None)


def test_the_first_asks_and_the_second_leaves() -> None:
    asked: list[int] = []
    with pytest.raises(KeyboardInterrupt), on_interrupt(lambda: asked.append(1)):
        signal.raise_signal(signal.SIGINT)
        assert asked == [1]
        signal.raise_signal(signal.SIGINT)
    assert asked == [1]


def test_one_inside_a_callback_of_the_library_prints_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    def ask() -> None:
        raise KeyboardInterrupt

    with on_interrupt(ask):
        CALLBACK(lambda: signal.raise_signal(signal.SIGINT))()
    assert capfd.readouterr().err == ""


def test_other_faults_in_callbacks_are_still_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda fault: seen.append(fault.exc_type))

    def fail() -> None:
        raise ValueError("in a callback")

    with on_interrupt(lambda: None):
        CALLBACK(fail)()
    assert seen == [ValueError]
