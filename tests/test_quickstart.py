"""`scripts/quickstart` in a clone whose project and whose llama-cpp-python are tiny stand-ins.

The scripts, the environment and pip are the real ones, offline; PATH holds only what a test puts there.
"""

import os
import runpy
import shutil
import signal
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BASE_PYTHON = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
pytestmark = pytest.mark.skipif(
    os.name == "nt", reason="the programs put on PATH are shell scripts, which Windows does not start"
)

# A build backend in one file; what it packs and does while it builds stands in the project.py beside it.
BACKEND = """
import os, runpy, time, zipfile
from pathlib import Path

def settings():
    return runpy.run_path("project.py")

def metadata(project):
    return f"Metadata-Version: 2.1\\nName: {project['name']}\\nVersion: 1.0\\n" + project.get("more", "")

def write(target, project, files):
    info = f"{project['file']}-1.0.dist-info"
    files = {
        **files,
        f"{info}/METADATA": metadata(project),
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        f"{info}/entry_points.txt": project.get("entry_points", ""),
    }
    record = "".join(f"{name},,\\n" for name in [*files, f"{info}/RECORD"])
    name = f"{project['file']}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(Path(target, name), "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return name

def prepare_metadata_for_build_wheel(target, config_settings=None):
    project = settings()
    info = Path(target, f"{project['file']}-1.0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text(metadata(project))
    return info.name

prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel

def build_wheel(target, config_settings=None, metadata_directory=None):
    project = settings()
    project["build"]()
    return write(target, project, {f"{project['module']}.py": project["source"]})

def build_editable(target, config_settings=None, metadata_directory=None):
    return build_wheel(target)
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
LLMRUN = """
name = file = module = "llmrun"
more = "Requires-Dist: llama-cpp-python==1.0\\n"
entry_points = "[console_scripts]\\nllmrun = llmrun:main\\n"
source = "import json, sys\\ndef main(): print(json.dumps([sys.argv[1:], sys.stdin.read()]))\\n"
def build():
    pass
"""
BINDING = """
name = "llama-cpp-python"
file = "llama_cpp_python"
module = "llama_cpp"
source = ""
import time
def build():
    with open({marker!r}, "a") as marker:
        marker.write("built\\n")
    for step in range(1, 51):
        print(f"[{{step}}/50] c++ -c part{{step}}.cpp", flush=True)
    {then}
"""


@dataclass
class Clone:
    """A folder with the scripts and the stand-in projects, and the few programs that PATH leads to."""

    root: Path

    @property
    def marker(self) -> Path:
        return self.root / "builds.txt"

    def put_program(self, name: str, text: str) -> None:
        path = self.root / "programs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o755)

    def put_binding(self, then: str = "pass") -> None:
        """The source package of the stand-in for llama-cpp-python, whose build ends by doing `then`."""
        source = self.root / "llama_cpp_python-1.0"
        source.mkdir()
        (source / "backend.py").write_text(BACKEND, encoding="utf-8")
        (source / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
        project = BINDING.format(marker=str(self.marker), then=then)
        (source / "project.py").write_text(project, encoding="utf-8")
        (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: 1.0\n")
        (self.root / "packages").mkdir()
        with tarfile.open(self.root / "packages" / "llama_cpp_python-1.0.tar.gz", "w:gz") as archive:
            archive.add(source, source.name)

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "CXX"))}
        return {
            **kept,
            "PATH": str(self.root / "programs"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.root / "packages"),
            "PIP_CACHE_DIR": str(self.root / "cache"),
        }

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["/bin/sh", "scripts/quickstart", *arguments],
            cwd=self.root / "clone",
            env=self.environment(),
            stdin=subprocess.PIPE,  # left open: nothing may wait for it
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
        )

    def quickstart(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        with self.start(*arguments) as process:
            assert process.stdout and process.stderr
            status = process.wait(timeout=120)
            return subprocess.CompletedProcess(arguments, status, process.stdout.read(), process.stderr.read())


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    root = tmp_path / "clone"
    (root / "scripts").mkdir(parents=True)
    for name in ("quickstart", "env.sh", "install.py"):
        (root / "scripts" / name).write_bytes((ROOT / "scripts" / name).read_bytes())
    (root / "backend.py").write_text(BACKEND, encoding="utf-8")
    (root / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (root / "project.py").write_text(LLMRUN, encoding="utf-8")
    clone = Clone(tmp_path)
    clone.put_program("dirname", f'exec {shutil.which("dirname")} "$@"')
    clone.put_program("python3", f'exec "{BASE_PYTHON}" "$@"')
    return clone


def test_an_old_python_is_one_clear_line(clone: Clone) -> None:
    clone.put_program("python3", "echo 3.9.18; exit 1")
    run = clone.quickstart("hello")
    assert run.returncode == 1
    assert run.stdout == ""
    lines = run.stderr.splitlines()
    assert lines[0] == "error: Python 3.11 or newer is needed; found python3 3.9.18"
    assert lines[1].startswith("hint: ") and len(lines) == 2
    assert not (clone.root / "clone" / ".venv").exists()


def test_no_python_is_one_clear_line(clone: Clone) -> None:
    (clone.root / "programs" / "python3").unlink()
    run = clone.quickstart("hello")
    assert run.returncode == 1
    assert run.stderr.startswith("error: Python 3.11 or newer is needed; found none\nhint: ")


def test_a_newer_python_is_taken_and_must_be_whole(clone: Clone) -> None:
    clone.put_program("python3", "echo 3.9.18; exit 1")
    clone.put_program("python3.12", 'case "$2" in *ensurepip*) exit 1;; *) echo 3.12.1;; esac')
    run = clone.quickstart("hello")
    assert run.returncode == 1
    assert run.stderr.startswith("error: python3.12 3.12.1 cannot make virtual environments")
    assert not (clone.root / "clone" / ".venv").exists()


def test_no_compiler_is_one_clear_line_and_nothing_is_built(clone: Clone) -> None:
    clone.put_program("c++", "echo 'no developer tools were found' >&2; exit 1")  # what macOS has without Xcode
    clone.put_binding()
    run = clone.quickstart("hello")
    assert run.returncode == 1
    assert run.stdout == ""
    error, hint = run.stderr.splitlines()[-2:]
    assert error.startswith("error: no C++ compiler was found")
    assert hint.startswith("hint: ") and "PIP_EXTRA_INDEX_URL=" in hint
    assert not clone.marker.exists()


def test_the_build_is_shown_once_and_the_second_run_does_nothing(clone: Clone) -> None:
    clone.put_program("c++", "exit 0")
    clone.put_binding()
    first = clone.quickstart("why is the sky blue")
    assert first.returncode == 0, first.stderr
    assert first.stdout == '[["run", "smollm2", "--", "why is the sky blue"], ""]\n'
    assert "built from source, once: this takes about 5 minutes" in first.stderr
    shown = [line.split(" %")[0] for line in first.stderr.splitlines() if "building llama.cpp:" in line]
    assert shown == [f"    building llama.cpp: {percent}" for percent in range(10, 101, 10)]
    assert "\r" not in first.stderr and "\x1b" not in first.stderr

    log = clone.root / "clone" / ".venv" / "install.log"
    before = log.stat().st_mtime_ns
    second = clone.quickstart()
    assert second.returncode == 0, second.stderr
    assert second.stdout.startswith('[["run", "smollm2", "--", "')
    assert log.stat().st_mtime_ns == before
    assert clone.marker.read_text() == "built\n"

    # Another environment, and another project file: the wheel that pip kept serves, no compiler is needed.
    shutil.rmtree(clone.root / "clone" / ".venv")
    clone.put_program("c++", "exit 1")
    third = clone.quickstart()
    assert third.returncode == 0, third.stderr
    assert "built from source" not in third.stderr
    (clone.root / "clone" / "pyproject.toml").write_text(PYPROJECT + "# changed\n", encoding="utf-8")
    assert "installing llmrun" in clone.quickstart().stderr
    assert clone.marker.read_text() == "built\n"


def test_a_failed_build_shows_its_end_and_names_the_log(clone: Clone) -> None:
    clone.put_program("c++", "exit 0")
    clone.put_binding(then='raise SystemExit("part50.cpp: error: no such intrinsic")')
    run = clone.quickstart("hello")
    assert run.returncode == 1
    log = clone.root / "clone" / ".venv" / "install.log"
    assert "part50.cpp: error: no such intrinsic" in run.stderr
    assert run.stderr.splitlines()[-2].startswith("error: pip could not install llmrun")
    assert run.stderr.splitlines()[-1] == f"hint: the whole log is in {log}"
    assert "part1.cpp" in log.read_text(encoding="utf-8")
    # Nothing says that it is installed: the next run tries again.
    assert clone.quickstart("hello").returncode == 1
    assert clone.marker.read_text() == "built\nbuilt\n"


def test_ctrl_c_ends_the_build(clone: Clone) -> None:
    clone.put_program("c++", "exit 0")
    clone.put_binding(then="time.sleep(100)")
    with clone.start("hello") as process:
        assert process.stderr
        for line in process.stderr:
            if "100 %" in line:
                break
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=30) in (130, -signal.SIGINT)
        assert process.stderr.read().endswith("interrupted\n")
    assert not (clone.root / "clone" / ".venv" / "llmrun.stamp").exists()


@pytest.mark.parametrize(
    ("lines", "phase"),
    [
        (["Collecting numpy>=1.26 (from llmrun)"], "Collecting numpy>=1.26"),
        (["  Downloading numpy-2.4.6.whl (16.6 MB)"], "Downloading numpy-2.4.6.whl"),
        (["[3/9] not while something else is built"], "starting pip"),
        (["BUILD started"], "building llama.cpp"),
        (["BUILD started", "  [19/193] g++ a.cpp"], "building llama.cpp: 9 %, step 19 of 193"),
        (["BUILD started", "  [  6%] Building CXX object"], "building llama.cpp: 6 %, step 6 of 100"),
        (["BUILD started", "BUILD finished with status 'done'", "[3/9] x"], "building llama.cpp"),
    ],
)
def test_pip_log_is_read(lines: list[str], phase: str) -> None:
    progress = runpy.run_path(str(ROOT / "scripts" / "install.py"), run_name="install")["Progress"]()
    for line in lines:
        progress.read(line.replace("BUILD", "  Building wheel for llama-cpp-python (pyproject.toml):"))
    assert progress.phase == phase
