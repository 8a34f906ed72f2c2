"""Pulls that are killed at random moments and started again, and what each run left and took."""

import json
import os
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from llmrun.models.parts import kept_bytes
from tests.hub_server import Hub

REF, NAME = "mock/repo:Q4_K_M", "m-Q4_K_M.gguf"
PULL = """
import json, sys
from llmrun.models.refs import parse_ref
from llmrun.models.sources import Want, hf
from llmrun.models.store import Store
from llmrun.report import Quiet
report = Quiet()
found = hf.fetch(Want(sys.argv[1], parse_ref(sys.argv[1])), Store(), report)
print(json.dumps([str(found.paths[0]), report.notes]))
"""


@dataclass(frozen=True)
class Run:
    """`kept_bytes`: what the journal vouched for when the run ended, or all; `sent_bytes`: what it was sent."""

    kept_bytes: int
    sent_bytes: int
    asked_again: bool
    """Whether it asked for bytes that an earlier journal vouched for."""
    found: bool
    """Whether the model could be found after it."""
    whole: bool
    """Whether what could be found was the whole file."""


def serve(hub: Hub, size_bytes: int, seed: int) -> bytes:
    content = b"GGUF" + random.Random(seed).randbytes(size_bytes - 4)
    hub.add("mock/repo", {NAME: content})
    hub.fail("/cdn/", pause_s=0.001)
    return content


def start(hub: Hub, home: Path) -> "subprocess.Popen[bytes]":
    root = Path(__file__).resolve().parent.parent
    env = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "PYTHONPATH": str(root)}
    return subprocess.Popen([sys.executable, "-c", PULL, REF], env=env, stdout=subprocess.PIPE)


def blob(hub: Hub, home: Path) -> Path:
    file = hub.repos["mock/repo"].files[NAME]
    return home / "hub" / "models--mock--repo" / "blobs" / file.sha256


def kill_after(hub: Hub, home: Path, sent_bytes: int, wait_s: float = 0.0) -> Run:
    """One pull, killed `wait_s` after the server has sent it so much of the file."""
    before, asked = hub.sent("/cdn/"), len(hub.requests("/cdn/"))
    vouched = _have(hub, home)
    pull = start(hub, home)
    while hub.sent("/cdn/") - before < sent_bytes and pull.poll() is None:
        time.sleep(0.002)
    time.sleep(wait_s)
    pull.kill()
    pull.communicate()
    _wait_until_quiet(hub)
    ranges = [r.headers["range"] for r in hub.requests("/cdn/")[asked:]]
    content = hub.repos["mock/repo"].files[NAME].content
    found = [blob(hub, home), *(home / "hub").glob(f"models--*/snapshots/*/{NAME}")]
    found = [path for path in found if path.exists()]
    whole = all(path.read_bytes() == content for path in found)
    kept = len(content) if found else kept_bytes(blob(hub, home), len(content))
    return Run(kept, hub.sent("/cdn/") - before, _covers(ranges, vouched), bool(found), whole)


def finish(hub: Hub, home: Path) -> tuple[bytes, int]:
    """One pull to its end: the file, and what the server sent for it."""
    before = hub.sent("/cdn/")
    pull = start(hub, home)
    out, _ = pull.communicate(timeout=120)
    path, _ = json.loads(out)
    return Path(path).read_bytes(), hub.sent("/cdn/") - before


def _have(hub: Hub, home: Path) -> list[tuple[int, int]]:
    """The byte ranges that the journal vouches for."""
    final = blob(hub, home)
    journal = final.with_name(f"{final.name}.have.incomplete")
    if not journal.exists():
        return []
    data = journal.read_bytes()
    step = int.from_bytes(data[16:24], "little")
    counts = [int.from_bytes(data[at : at + 8], "little") for at in range(24, len(data), 8)]
    return [(n * step, n * step + count) for n, count in enumerate(counts)]


def _covers(ranges: list[str], vouched: list[tuple[int, int]]) -> bool:
    for text in ranges:
        first, last = map(int, re.findall(r"\d+", text))
        if any(first < end and last >= start for start, end in vouched if end > start):
            return True
    return False


def _wait_until_quiet(hub: Hub) -> None:
    """The server notices with its next block that nobody listens."""
    while hub.at_once:
        time.sleep(0.002)
