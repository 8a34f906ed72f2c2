"""Runs the real command in a process of its own, on pipes or on a terminal."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
LLMRUN = [sys.executable, "-m", "llmrun"]


@dataclass(frozen=True)
class Result:
    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode("utf-8")

    def failed(self, status: int, *said: str) -> None:
        """One error line (and at most one hint), no traceback, nothing on stdout, the status."""
        assert self.status == status, self
        errors = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, self.err
        assert "Traceback" not in self.err
        assert self.out == b"", self
        for words in said:
            assert words.lower() in self.err.lower(), self.err


def environment(extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """The test's own environment, the checkout importable from anywhere; None takes a variable out."""
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # it would make every start compile every module
    for name, value in (extra or {}).items():
        env.pop(name, None)
        if value is not None:
            env[name] = value
    return env


def llmrun(
    *args: object,
    stdin: bytes | None = b"",
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
    timeout: float = 120,
) -> Result:
    """Run `llmrun ARGS`. stdin None is an empty device, not a pipe."""
    done = subprocess.run(
        [*LLMRUN, *map(str, args)],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        env=environment(env),
        cwd=cwd,
        timeout=timeout,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr.decode("utf-8", "replace"))


def on_terminal(*args: object, env: Mapping[str, str | None] | None = None) -> str:
    """What a terminal shows of a run, stdout and stderr together."""
    import pty  # not on Windows

    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*LLMRUN, *map(str, args)], stdin=follower, stdout=follower, stderr=follower, env=environment(env)
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # Linux reports the end of a terminal so
            break
        if not part:
            break
        shown += part
    process.wait(timeout=60)
    os.close(leader)
    return shown.decode("utf-8", "replace")
