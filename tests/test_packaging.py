"""The wheel and the source package: what is inside, that they install, and that the changelog keeps up."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import llmrun

ROOT = Path(__file__).resolve().parent.parent


def build(kind: str, source: Path, target: Path) -> Path:
    """The package of this kind (wheel or sdist) that the build backend makes from `source`."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    run = subprocess.run(command, cwd=source, capture_output=True, encoding="utf-8", timeout=120)
    assert run.returncode == 0, run.stderr
    [package] = target.iterdir()
    return package


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_the_catalogue_and_every_module(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        catalogue = archive.read("llmrun/models.toml")
    assert catalogue == (ROOT / "models.toml").read_bytes()
    assert tomllib.loads(catalogue.decode())
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "llmrun").rglob("*.py")}
    assert modules <= names
    assert not [name for name in names if name.split("/")[0] in {"tests", "scripts"}]


def test_the_source_package_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    package = build("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(package) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    [source] = (tmp_path / "source").iterdir()
    assert (source / "scripts" / "quickstart").exists()
    again = build("wheel", source, tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())


def test_the_installed_wheel_runs(wheel: Path, tmp_path: Path) -> None:
    # The dependencies are those of the environment that runs the tests: only the wheel is installed anew.
    home = tmp_path / "venv"
    venv.create(home, symlinks=os.name != "nt", with_pip=False)
    scripts = home / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / ("python.exe" if os.name == "nt" else "python")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    run = subprocess.run(pip, capture_output=True, encoding="utf-8", timeout=120)
    assert run.returncode == 0, run.stderr

    # The new environment's own packages come first, those of the dependencies after them.
    packages = next(home.rglob("site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for command in (
        [python, "-c", "import llmrun; print(llmrun.__file__)"],
        [scripts / "llmrun", "--version"],
    ):
        run = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", timeout=60
        )
        assert run.returncode == 0, run.stderr
        assert (str(packages) if command[0] == python else llmrun.__version__) in run.stdout


def test_the_changelog_has_this_version() -> None:
    headings = [
        line.removeprefix("## [").split("]")[0]
        for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("## [")
    ]
    assert llmrun.__version__ in headings or headings[0] == "Unreleased"
