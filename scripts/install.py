"""Installs llmrun and what it needs into the environment that runs this, and shows how far it is.

Knows pip's log, not the shell scripts that call it. A stamp in the environment makes a second run do nothing.
"""

import hashlib
import importlib.util
import os
import platform
import queue
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
LOG = Path(sys.prefix, "install.log")
STAMP = Path(sys.prefix, "llmrun.stamp")
WHEELS = "https://abetlen.github.io/llama-cpp-python/whl/cpu"

SOURCE_PACKAGE = re.compile(r"\bllama_cpp_python-[\w.]+\.tar\.gz")
BUILD = re.compile(r"Building wheel for llama-cpp-python .*(started|finished)")
# Ninja prints [12/193], make [ 6%]; Visual Studio's builder prints neither.
STEP = re.compile(r"\s*\[\s*(\d+)(?:/(\d+)|%)\]")
PHASE = re.compile(r"\s{0,2}(?:Collecting|Downloading|Installing collected|Building editable)\b[^(:]*")
HEARTBEAT_S = 30.0
COMPILER_HINTS = {
    "darwin": "install one with: xcode-select --install",
    "win32": 'install Visual Studio Build Tools with "Desktop development with C++"',
    "linux": "install one (Debian and Ubuntu: sudo apt install g++, Fedora: sudo dnf install gcc-c++)",
}


def say(text: str) -> None:
    print(f"==> {text}", file=sys.stderr, flush=True)


def fail(message: str, hint: str) -> NoReturn:
    print(f"error: {message}\nhint: {hint}", file=sys.stderr, flush=True)
    sys.exit(1)


class Progress:
    """What pip is doing: one line rewritten on a terminal, elsewhere a line for each tenth or half minute."""

    def __init__(self) -> None:
        self.on_terminal = sys.stderr.isatty()
        self.phase = "starting pip"
        self.building = False
        self.percent = 0
        self.start_s = self.shown_s = time.monotonic()

    def read(self, line: str) -> None:
        """Takes one line of pip's log."""
        if build := BUILD.search(line):
            self.building = build[1] == "started"
            self.phase, self.start_s = "building llama.cpp", time.monotonic()
        elif self.building and (step := STEP.match(line)):
            self.advance(int(step[1]), int(step[2] or 100))
        elif not self.building and (phase := PHASE.match(line)):
            self.phase = phase[0].strip()

    def advance(self, done: int, total: int) -> None:
        percent = 100 * done // max(total, 1)
        self.phase = f"building llama.cpp: {percent} %, step {done} of {total}"
        if percent // 10 > self.percent // 10 and not self.on_terminal:
            self.show()
        self.percent = percent

    def tick(self) -> None:
        """Called for every line and at least once a second."""
        if time.monotonic() - self.shown_s >= (0.2 if self.on_terminal else HEARTBEAT_S):
            self.show()

    def show(self) -> None:
        self.shown_s = time.monotonic()
        minutes, seconds = divmod(int(self.shown_s - self.start_s), 60)
        text = f"    {self.phase}, {minutes}:{seconds:02} min"
        if self.on_terminal:
            self.rewrite(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def erase(self) -> None:
        if self.on_terminal:
            self.rewrite("")

    def rewrite(self, text: str) -> None:
        columns = shutil.get_terminal_size().columns - 1
        print(f"\r{text[:columns].ljust(columns)}\r", end="", file=sys.stderr, flush=True)


def compiles(command: list[str]) -> bool:
    """Whether this is a working C++ compiler: macOS has a c++ that only says which package to install."""
    command = [*command, "-x", "c++", "-fsyntax-only", "-"]
    try:
        run = subprocess.run(command, input=b"#include <vector>\n", capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return run.returncode == 0


def visual_studio_is_here() -> bool:
    if shutil.which("cl"):
        return True
    folder = os.environ.get("PROGRAMFILES(X86)", r"C:\Program Files (x86)")
    vswhere = Path(folder, "Microsoft Visual Studio", "Installer", "vswhere.exe")
    wanted = ["-latest", "-products", "*", "-requires", "Microsoft.VisualStudio.Component.VC.Tools.x86.x64"]
    return vswhere.exists() and bool(subprocess.run([vswhere, *wanted], capture_output=True).stdout.strip())


def compiler_is_here() -> bool:
    if os.environ.get("CXX"):
        return compiles(shlex.split(os.environ["CXX"], posix=os.name != "nt"))
    return any(compiles([name]) for name in ("c++", "g++", "clang++")) or (
        sys.platform == "win32" and visual_studio_is_here()
    )


def expect_build() -> None:
    """pip has chosen the source package: stop now where it cannot be built, else say how long it takes."""
    if not compiler_is_here():
        get = COMPILER_HINTS.get(sys.platform, "install g++ or clang++")
        fail(
            "no C++ compiler was found, and llama-cpp-python must be built: no ready-made wheel is offered",
            f"{get}, or let pip see the published wheels: export PIP_EXTRA_INDEX_URL={WHEELS}",
        )
    say(
        "llama.cpp is built from source, once: this takes about 5 minutes on 2 cores "
        f"(this machine has {os.cpu_count()})"
    )


def lines_or_seconds(pip: subprocess.Popen[str]) -> Iterator[str]:
    """The lines of pip's log as they come, and an empty string for each second without one."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in pip.stdout or ():
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=1)
        except queue.Empty:
            line = ""
        if line is None:
            return
        yield line


def run_pip(extras: str) -> int:
    """Exit status of `pip install -e .[extras]`, its log written to LOG and its progress to stderr."""
    command = [sys.executable, "-m", "pip", "install", "-v", "--no-input", "--disable-pip-version-check"]
    progress = Progress()
    announced = False
    with (
        LOG.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            [*command, "-e", f".[{extras}]" if extras else "."],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        ) as pip,
    ):
        try:
            for line in lines_or_seconds(pip):
                log.write(line)
                if not announced and SOURCE_PACKAGE.search(line):
                    progress.erase()
                    expect_build()
                    announced = True
                progress.read(line)
                progress.tick()
        except BaseException:
            pip.terminate()
            raise
        finally:
            progress.erase()
    return pip.returncode


def fingerprint() -> str:
    """Changes with what must be installed and where: the project file, the Python, the folder."""
    parts = [(ROOT / "pyproject.toml").read_bytes(), platform.python_version().encode(), bytes(ROOT)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def install(extras: str) -> None:
    """`extras` is "" or a dependency group of pyproject.toml. Does nothing where the stamp says so."""
    done = STAMP.read_text(encoding="utf-8").split("\n") if STAMP.exists() else []
    if done[:1] == [fingerprint()] and extras in ["", *done[1:]]:
        say("already installed")
        return
    if importlib.util.find_spec("pip") is None:
        subprocess.run([sys.executable, "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
    say(f"installing llmrun and what it needs (log: {LOG})")
    STAMP.unlink(missing_ok=True)
    if status := run_pip(extras):
        tail = LOG.read_text(encoding="utf-8").splitlines()[-25:]
        print("\n".join(f"    {line[:200]}" for line in tail), file=sys.stderr)
        ended = f"exit status {status}" if status > 0 else f"ended by signal {-status}"
        fail(f"pip could not install llmrun ({ended})", f"the whole log is in {LOG}")
    STAMP.write_text(f"{fingerprint()}\n{extras}", encoding="utf-8")


if __name__ == "__main__":
    try:
        install(sys.argv[1] if len(sys.argv) > 1 else "")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
