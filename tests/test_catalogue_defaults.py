"""Settings of `models.toml` reach a run, and flags win over them."""

import json
from pathlib import Path

from tests.cli import llmrun
from tests.tiny import tiny_gguf

TABLE = """
default = "mine"

[mine]
source = "{path}"
temp = 0.25
top-k = 3
ctx = 512
max-tokens = 4
system = "Be brief"
template = "llama2"
"""


def test_the_users_catalogue_gives_defaults_and_flags_win(home: Path, tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path / "m.gguf")
    config = home / "config" / "models.toml"
    config.parent.mkdir(parents=True)
    config.write_text(TABLE.format(path=model.as_posix()), encoding="utf-8")
    result = llmrun("run", "--json", "--show-prompt", "--ignore-eos", stdin=b"hi")
    answer = json.loads(result.text)
    settings = answer["settings"]
    assert (settings["temp"], settings["top_k"], settings["n_ctx"]) == (0.25, 3, 512)
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["model"]["ref"] == "mine"
    assert "<<SYS>>" in result.err and "Be brief" in result.err
    flags = ("-n", 2, "--temp", 1, "-c", 256, "-s", "Other", "--template", "chatml")
    result = llmrun("run", "-m", "mine", "hi", "--json", "--show-prompt", "--ignore-eos", *flags)
    answer = json.loads(result.text)
    assert (answer["settings"]["temp"], answer["settings"]["n_ctx"]) == (1, 256)
    assert answer["usage"]["completion_tokens"] == 2
    assert "system\nOther<|im_end|>" in result.err
