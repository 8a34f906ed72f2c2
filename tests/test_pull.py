"""`llmrun pull` in a process of its own, as a user meets it."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrun.models.download import CONNECTIONS
from tests.cli import LLMRUN, environment, llmrun
from tests.hub_server import Hub
from tests.proxy import Proxy
from tests.tiny import tiny_gguf


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        yield hub


@pytest.fixture
def model(tiny_model: Path) -> bytes:
    return tiny_model.read_bytes()


def listed() -> list[str]:
    return [entry["name"] for entry in json.loads(llmrun("list", "--json").text)["models"]]


def test_pull_then_list_then_run_offline(hub: Hub, model: bytes) -> None:
    hub.add("mock/repo", {"m-Q4_K_M.gguf": model, "m-Q8_0.gguf": model + bytes(32)})
    pulled = llmrun("pull", "mock/repo", "--json")
    assert pulled.status == 0, pulled.err
    assert json.loads(pulled.text)["source"] == "mock/repo:Q4_K_M"
    assert listed() == ["mock/repo:Q4_K_M"]
    asked = len(hub.log)
    offline = {"HF_HUB_OFFLINE": "1"}
    again = llmrun("pull", "mock/repo", env=offline)
    assert again.status == 0
    assert "here (not checked, offline)" in again.err
    answer = llmrun("run", "mock/repo", "hello", "-n", "3", "--temp", "0", env=offline)
    assert answer.status == 0, answer.err
    absent = llmrun("pull", "mock/repo:Q8_0", env=offline)
    absent.failed(1, "mock/repo:Q8_0 is not here", "offline", "here are, of this repo: Q4_K_M")
    assert len(hub.log) == asked


@pytest.mark.parametrize("token", [None, "hf_secret"])
def test_refusals(hub: Hub, token: str | None, model: bytes) -> None:
    """HUB-01: five messages, no token in any, no file left, exit status 1."""
    hub.add("mock/gated", {"m-Q4_K_M.gguf": model}, gated="manual", token="hf_good")
    hub.add("mock/repo", {"m-Q4_K_M.gguf": model})
    env = {"HF_TOKEN": token}
    answers = [
        (llmrun("pull", "mock/gated", env=env), ("is gated", f"accept the licence at {hub.url}/mock/gated")),
        (llmrun("pull", "mock/absent", env=env), ("is not on the hub, or is private",)),
        (llmrun("pull", "hf:mock/repo/x.gguf", env=env), ("has no file 'x.gguf'", "m-Q4_K_M.gguf")),
    ]
    hub.fail("/api/", times=1, status=403)
    answers.append((llmrun("pull", "mock/repo", env=env), ("no access to mock/repo (403)",)))
    hub.fail("/api/", status=429, headers={"Retry-After": "900"})
    answers.append((llmrun("pull", "mock/repo", env=env), ("too many requests (429)", "try again in 900 s")))
    for result, said in answers:
        result.failed(1, *said)
        assert "hf_secret" not in result.err
    assert any("Bearer hf_secret" in r.headers.get("authorization", "") for r in hub.log) == (token is not None)
    assert listed() == []


def test_split_parts(hub: Hub, tmp_path: Path) -> None:
    """SEL-03: all parts and no others; one row with the total size; rm removes all."""
    whole = tiny_gguf(tmp_path / "split.gguf").read_bytes()
    parts = {f"Q3_K_M/m-Q3_K_M-0000{n}-of-00003.gguf": whole for n in (1, 2, 3)}
    others = {f"Q8_0/m-Q8_0-0000{n}-of-00002.gguf": whole + bytes(n) for n in (1, 2)}
    hub.add("mock/split", {name: content + bytes([n]) for n, (name, content) in enumerate(parts.items())} | others)
    pulled = llmrun("pull", "mock/split:Q3_K_M", "--json")
    assert pulled.status == 0, pulled.err
    assert json.loads(pulled.text)["size_bytes"] == 3 * (len(whole) + 1)
    assert listed() == ["mock/split:Q3_K_M"]
    assert llmrun("rm", "--yes", "mock/split:Q3_K_M").status == 0
    assert listed() == []
    assert not [path for path in (tmp_path / "hf").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_dry_run_fetches_nothing(hub: Hub, model: bytes) -> None:
    """SEL-04: every form of address is the same file."""
    hub.add("mock/repo", {"m-Q4_0.gguf": model})
    forms = [f"{hub.url}/mock/repo/blob/main/m-Q4_0.gguf", "hf.co/mock/repo:Q4_0", "hf://mock/repo"]
    said = {llmrun("pull", "--dry-run", form).text for form in forms}
    assert len(said) == 1
    assert f"/mock/repo/resolve/{hub.repos['mock/repo'].commit}/m-Q4_0.gguf" in said.pop()
    assert hub.requests("/resolve/") == []


def test_the_proxy_is_used(hub: Hub, model: bytes) -> None:
    """HUB-03"""
    hub.add("mock/repo", {"m-Q4_0.gguf": model})
    with Proxy() as proxy:
        assert llmrun("pull", "mock/repo", env={"HTTP_PROXY": proxy.url}).status == 0
    assert any("/mock/repo/resolve/" in line for line in proxy.log)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send Ctrl-C to one process alone")
def test_ctrl_c_ends_at_once_and_keeps_the_part(hub: Hub, model: bytes) -> None:
    content = model + random.Random(1).randbytes(6_000_000)
    hub.add("mock/repo", {"m-Q4_0.gguf": content})
    hub.fail("/cdn/", pause_s=0.02)
    pull = subprocess.Popen([*LLMRUN, "pull", "mock/repo"], env=environment(), stderr=subprocess.PIPE, text=True)
    while hub.sent("/cdn/") < 2_000_000 and pull.poll() is None:
        time.sleep(0.01)
    os.kill(pull.pid, signal.SIGINT)
    _, err = pull.communicate(timeout=60)
    assert pull.returncode == 130
    assert "are kept" in err
    assert "Traceback" not in err
    assert listed() == []
    hub.faults.clear()
    assert llmrun("pull", "mock/repo").status == 0
    assert hub.sent("/cdn/") <= len(content) + (CONNECTIONS << 20)
    assert listed() == ["mock/repo:Q4_0"]


def test_a_wrong_setting_of_the_hubs_is_named(hub: Hub) -> None:
    wrong = llmrun("pull", "mock/repo", env={"HF_HUB_ETAG_TIMEOUT": "soon"})
    wrong.failed(2, "a setting that begins with HF_ is wrong", "'soon'")


def test_what_a_server_names_is_shown_not_obeyed(hub: Hub, model: bytes) -> None:
    hub.add("mock/evil", {"a\x1b]0;pwned\x07-Q4_0.gguf": model, "m-Q8_0.gguf": model})
    pulled = llmrun("pull", "mock/evil")
    assert pulled.status == 0
    assert "\x1b" not in pulled.err
    assert "unsafe name: a\\x1b]0;pwned\\x07-Q4_0.gguf" in pulled.err
