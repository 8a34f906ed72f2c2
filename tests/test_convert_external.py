"""`--converter PATH`: another program in llmrun's place, and its output under the same rules."""

import sys
from pathlib import Path

import pytest

from llmrun.convert.external import convert_externally
from llmrun.errors import ConvertError, NotFoundError
from llmrun.report import Quiet
from tests.checkpoints import checkpoint
from tests.gguf_digest import describe


def script(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "convert_hf_to_gguf.py"
    path.write_text(f"import sys\nfolder, _, outtype, _, out = sys.argv[1:]\n{body}", encoding="utf-8")
    return path


def run(tmp_path: Path, body: str, **more: bool) -> None:
    out = tmp_path / "out" / "model.gguf"
    out.parent.mkdir(exist_ok=True)
    convert_externally(checkpoint("llama_spm"), out, script(tmp_path, body), type="f16", report=Quiet(), **more)


def test_a_converter_is_called_as_llama_cpp_s_is(tmp_path: Path) -> None:
    """What it wrote is checked and described like llmrun's own."""
    body = (
        "from pathlib import Path\n"
        "from llmrun.convert.pipeline import convert\n"
        "from llmrun.report import Quiet\n"
        "print('working')\n"
        "convert(Path(folder), Path(out), type=outtype, report=Quiet())\n"
    )
    out = tmp_path / "out.gguf"
    result = convert_externally(checkpoint("llama_spm"), out, script(tmp_path, body), type="q8_0", report=Quiet())
    assert result.path == out and result.size_bytes == out.stat().st_size
    assert (result.arch, result.name, result.tokenizer) == ("llama", "Tiny Llama 1M Chat v1.0", "llama")
    assert result.tensors == {"Q8_0": 16, "F32": 5} and result.file_type == "Q8_0"
    assert describe(out)["kv"]["general.file_type"]["value"] == 7


@pytest.mark.parametrize(
    ("body", "message", "hint"),
    [
        ("print('x'); sys.exit(3)", "ended with status 3", "its last line: x"),
        ("sys.exit(1)", "ended with status 1", "printed nothing"),
        ("import no_such_module", "ended with status 1", "No module named 'no_such_module': install it into"),
        ("print('done')", "wrote no usable file", "its last line: done"),
        ("open(out, 'wb').write(b'GGUF')", "wrote no usable file", "printed nothing"),
        ("print('\\x1b[31m bad'); sys.exit(1)", "status 1", "\\x1b[31m bad"),
    ],
)
def test_a_converter_that_fails_leaves_nothing(body: str, message: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(ConvertError) as caught:
        run(tmp_path, body)
    assert message in caught.value.message and hint in caught.value.hint
    assert list((tmp_path / "out").iterdir()) == []


def test_a_converter_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="is no file"):
        convert_externally(checkpoint("llama_spm"), tmp_path / "o.gguf", tmp_path / "none.py", report=Quiet())


def test_a_program_with_a_python_of_its_own(tmp_path: Path) -> None:
    """Not a .py file: run as it is, which lets a script choose its environment."""
    if sys.platform == "win32":
        program = tmp_path / "convert.bat"
        program.write_text("@exit /b 7\n")
    else:
        program = tmp_path / "convert"
        program.write_text("#!/bin/sh\nexit 7\n")
        program.chmod(0o755)
    with pytest.raises(ConvertError, match="ended with status 7"):
        convert_externally(checkpoint("llama_spm"), tmp_path / "out.gguf", program, report=Quiet())
