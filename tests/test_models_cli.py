"""Model files as a user hands them to `run` and `show`, and meets them in `list`: a process of its own each."""

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import gguf_bytes as g
from tests.cli import LLMRUN, environment, llmrun, on_terminal
from tests.test_inventory import put
from tests.tiny import tiny_gguf, tiny_split

ANSWER = ("hi", "-n", "3", "--temp", "0", "-t", "1")
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
C_LOCALES = [{"LC_ALL": "C"}, ASCII]


def rows(*args: str, env: Mapping[str, str | None] | None = None) -> dict[str, dict[str, object]]:
    """`list --json` by name."""
    listed = llmrun("list", "--json", *args, env=env)
    assert listed.status == 0, listed.err
    return {row["name"]: row for row in json.loads(listed.text)["models"]}


def lm_studio(name: str, data: bytes) -> Path:
    path = Path.home() / ".lmstudio" / "models" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


# What is no model.


@pytest.mark.parametrize("command", ["run", "show"])
def test_what_is_taken_for_a_model(command: str, tmp_path: Path) -> None:
    """GGUF-01"""
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 98362432\n"
    (tmp_path / "a.gguf").write_text(pointer)
    (tmp_path / "b.gguf").write_text("<!doctype html><html></html>")
    prompt = ("hi",) if command == "run" else ()
    said = "a.gguf is a Git LFS pointer (real size 98 MB); fetch it with git lfs pull or llmrun pull"
    llmrun(command, "a.gguf", *prompt, cwd=tmp_path).failed(1, said)
    llmrun(command, "b.gguf", *prompt, cwd=tmp_path).failed(1, "b.gguf is an HTML page, not a GGUF")


@pytest.mark.parametrize(("name", "kept"), [("half", 49_000_000), ("m16", -16), ("hdr", 200)])
def test_a_broken_off_file(name: str, kept: int, smollm2: Path, tmp_path: Path) -> None:
    """GGUF-02"""
    size = smollm2.stat().st_size
    kept = kept if kept > 0 else size + kept
    path = tmp_path / f"{name}.gguf"
    with smollm2.open("rb") as whole:
        path.write_bytes(whole.read(kept))
    said = f"expected {size} bytes by its own header, has {kept}" if kept > 200 else "incomplete"
    llmrun("run", path, "hi").failed(1, f"{name}.gguf", "incomplete", said)
    shown = llmrun("show", path)
    assert shown.status == 1
    assert said in shown.err
    assert ("architecture llama, 30 layers" in shown.text) == (kept > 200)


def test_any_part_is_the_whole_split_model(tiny_model: Path, tmp_path: Path) -> None:
    """GGUF-05: part 2 is resolved to part 1. The answer is the whole model's."""
    tiny_split(tmp_path)
    answer = llmrun("run", tmp_path / "m-00002-of-00003.gguf", *ANSWER)
    assert answer.status == 0, answer.err
    assert answer.text == llmrun("run", tiny_model, *ANSWER).text != ""


def test_a_folder_of_parts_is_a_model(tmp_path: Path) -> None:
    """GGUF-05"""
    tiny_split(tmp_path)
    assert llmrun("run", tmp_path, *ANSWER).status == 0
    shown = json.loads(llmrun("show", tmp_path, "--json").text)
    assert len(shown["paths"]) == 3
    assert shown["size_bytes"] == sum(path.stat().st_size for path in tmp_path.iterdir())


@pytest.mark.parametrize("command", ["run", "show"])
def test_parts_that_do_not_make_a_model(command: str, tmp_path: Path) -> None:
    """GGUF-05: a missing part is named, a cut one too; parts joined byte by byte are recognised."""
    prompt = ("hi",) if command == "run" else ()
    parts = tiny_split(tmp_path)
    (tmp_path / "joined.gguf").write_bytes(b"".join(part.read_bytes() for part in parts))
    llmrun(command, tmp_path / "joined.gguf", *prompt).failed(1, "3 parts of a split model joined byte by byte")
    parts[1].write_bytes(parts[1].read_bytes()[:-64])
    cut = llmrun(command, parts[0], *prompt)
    assert cut.status == 1 and "incomplete" in cut.err and "Traceback" not in cut.err
    parts[2].unlink()
    llmrun(command, parts[0], *prompt).failed(1, f"{parts[2].name} is missing")


def test_a_split_model_is_one_row(tmp_path: Path) -> None:
    """GGUF-05"""
    for path in tiny_split(tmp_path):
        lm_studio(path.name, path.read_bytes())
    (row,) = rows("--all").values()
    assert row["size_bytes"] == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert row["fault"] == "" and row["n_params"] == 108352


def test_a_projector_is_no_model(tmp_path: Path) -> None:
    """GGUF-06"""
    path = tmp_path / "mmproj-x.gguf"
    keys = [g.text_pair("general.architecture", "clip"), g.text_pair("general.type", "mmproj")]
    path.write_bytes(g.file(keys, [g.tensor("v.patch_embd", [4])], bytes(16)))
    refused = llmrun("run", path, "hi")
    refused.failed(1, "mmproj-x.gguf is a vision projector, not a language model", "use the model file beside it")
    shown = llmrun("show", path)
    assert shown.status == 0 and "a vision projector" in shown.text
    put("projector", path.read_bytes(), "p.gguf")
    lm_studio("x/mmproj-x.gguf", path.read_bytes())
    assert rows("--all") == {}


# Files that lie.

KEY = "general.architecture"
WRAPPING = g.tensor("t", [2**32, 2**32, 2**32, 4])
HOSTILE = {
    "pairs": g.file(n_pairs=2**60),
    "tensors": g.file(n_tensors=2**60),
    "string": g.file([g.text(KEY) + struct.pack("<IQ", g.STRING, 2**62)]),
    "array": g.file([g.text(KEY) + struct.pack("<IIQ", g.ARRAY, g.UINT32, 2**61)]),
    "dims": g.file([g.text_pair(KEY, "llama")], [g.text("t") + struct.pack("<I", 2**31)]),
    "wraps": g.file([g.text_pair(KEY, "llama")], [WRAPPING], bytes(64)),
    "offset": g.file([g.text_pair(KEY, "llama")], [g.tensor("t", [4], offset=2**40)], bytes(64)),
    "alignment": g.file([g.text_pair(KEY, "llama"), g.u32_pair("general.alignment", 2**30)]),
    "twice": g.file([g.text_pair(KEY, "llama")] * 2),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_that_lies(case: str, tmp_path: Path) -> None:
    """SEC-02: refused in one line, at once, in little memory."""
    path = tmp_path / "evil.gguf"
    path.write_bytes(HOSTILE[case])
    for args in (("show", path), ("run", path, "hi")):
        llmrun(*args, timeout=30).failed(1, "evil.gguf", "corrupt or malicious: ")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell the memory that a child used")
def test_a_file_that_lies_takes_no_memory(tmp_path: Path) -> None:
    """SEC-02: less than 500 MB for any of them."""
    files = []
    for case, data in HOSTILE.items():
        files.append(tmp_path / f"{case}.gguf")
        files[-1].write_bytes(data)
    program = (
        "import sys\n"
        "from llmrun.cli import app\n"
        "for path in sys.argv[1:]: assert app.run(['show', path]) == 1, path\n"
        "from llmrun.machine.memory import peak_rss_bytes\n"
        "print(peak_rss_bytes())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, *map(str, files)],
        env=environment(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert int(ran.stdout) < 500_000_000


def test_the_rest_is_listed_beside_files_that_lie(tiny_model: Path) -> None:
    """SEC-02"""
    for case, data in HOSTILE.items():
        put(case, data, f"{case}.gguf")
    put("good", tiny_model.read_bytes())
    listed = llmrun("list")
    assert listed.status == 0
    lines = {line.split()[0]: line for line in listed.text.splitlines()[1:]}
    assert set(lines) == {"good", *HOSTILE}
    assert [name for name, line in lines.items() if "damaged" not in line] == ["good"]
    assert listed.err.count("corrupt or malicious: ") == len(HOSTILE)


# Names and folders.

ODD = Path("Загрузки (2)") / "é 日本" / "m q4.gguf"


@pytest.fixture
def odd(tiny_model: Path) -> Path:
    path = Path.home() / ODD
    path.parent.mkdir(parents=True)
    shutil.copy(tiny_model, path)
    return path


@pytest.mark.parametrize("env", [{}, *C_LOCALES] if os.name != "nt" else [{}])
def test_models_in_odd_folders(env: dict[str, str], odd: Path, tmp_path: Path) -> None:
    """PATH-01: also with a `~` that the shell left alone."""
    quoted = f"~/{ODD.as_posix()}"
    for name in (quoted, odd):
        answer = llmrun("run", name, *ANSWER, env=env, cwd=tmp_path)
        assert answer.status == 0, answer.err
    shown = llmrun("show", quoted, "--json", env=env, cwd=tmp_path)
    assert json.loads(shown.text)["paths"] == [str(odd)]


@pytest.mark.parametrize("env", [{}, {"LC_ALL": "C"}] if os.name != "nt" else [{}])
def test_messages_show_odd_paths_unmangled(env: dict[str, str], odd: Path) -> None:
    """PATH-01"""
    absent = odd.with_name("m q5.gguf")
    llmrun("run", absent, "hi", env=env).failed(1, f"{absent} is not there", "did you mean m q4.gguf?")


@pytest.mark.parametrize("env", [{}, *C_LOCALES] if os.name != "nt" else [{}])
def test_odd_homes(env: dict[str, str], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH-01: LLMRUN_HOME and the folder of temporary files."""
    for name in ("é 日本", "tmp é"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("LLMRUN_HOME", str(tmp_path / "é 日本"))
    env = {**env, "TMPDIR": str(tmp_path / "tmp é")}
    assert llmrun("alias", "mine", tiny_model, env=env).status == 0
    put("tiny", tiny_model.read_bytes())
    assert list(rows(env=env)) == ["tiny"]
    for name in ("mine", "tiny"):
        assert llmrun("run", name, *ANSWER, env=env).status == 0
    assert llmrun("rm", "--yes", "tiny", env=env).status == 0


# Where `list` writes.


@pytest.mark.skipif(os.name == "nt", reason="Windows has no C locale")
def test_a_list_in_ascii(tiny_model: Path) -> None:
    """TTY-03"""
    path = lm_studio("é 日本/m-Q4_0.gguf", tiny_model.read_bytes())
    listed = llmrun("list", "--all", env=ASCII)
    assert (listed.status, listed.err) == (0, "")
    assert listed.out.isascii() and b"m-Q4_0.gguf" in listed.out
    utf8 = llmrun("list", "--all", env={"PYTHONUTF8": "1"})
    assert str(path) in utf8.text


@pytest.mark.skipif(os.name == "nt", reason="Windows has no terminals of this kind")
@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_list_without_colour(env: dict[str, str], tiny_model: Path) -> None:
    """TTY-01"""
    put("tiny", tiny_model.read_bytes())
    shown = on_terminal("list", env=env)
    assert "tiny" in shown and "\x1b" not in shown
    assert "\x1b" not in llmrun("list", env={"FORCE_COLOR": "1"}).text


@pytest.mark.parametrize("args", [(), ("--json",), ("--catalogue",)])
def test_a_reader_that_leaves(args: tuple[str, ...], tiny_model: Path) -> None:
    """IN-06"""
    put("tiny", tiny_model.read_bytes())
    process = subprocess.Popen(
        [*LLMRUN, "list", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment({"PYTHONUNBUFFERED": "1"}),
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(60) in (0, 141)


def test_names_in_files_are_shown_not_obeyed(tmp_path: Path) -> None:
    """What metadata says is text, also on a terminal."""
    evil = "\x1b]0;pwned\x07\u202eevil"
    path = tiny_gguf(tmp_path / "m.gguf", metadata={"general.license": evil, "tokenizer.chat_template": f"x{evil}"})
    for args in ((), ("--metadata",)):
        shown = llmrun("show", path, *args)
        assert shown.status == 0 and "\x1b" not in shown.text and "\\x1b]0;pwned" in shown.text
    if os.name != "nt":
        assert "\x1b" not in on_terminal("show", path, "--template", env={"NO_COLOR": "1"})
