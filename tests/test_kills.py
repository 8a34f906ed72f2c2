import random
from pathlib import Path

from llmrun.models.download import CONNECTIONS
from tests import kills
from tests.hub_server import Hub

SIZE = 32_000_000
IN_FLIGHT = CONNECTIONS << 20
"""What the server may have sent and the journal not vouched for: a segment on each connection."""


def test_killed_pulls_end_whole_and_fetch_nothing_twice(tmp_path: Path) -> None:
    rng = random.Random(7)
    with Hub() as hub:
        content = kills.serve(hub, SIZE, seed=7)
        runs = [kills.kill_after(hub, tmp_path, rng.randrange(100_000, 7_000_000)) for _ in range(5)]
        whole, sent = kills.finish(hub, tmp_path)
    assert whole == content
    kept = 0
    for run in runs:
        assert not run.found
        assert not run.asked_again
        assert run.sent_bytes - (run.kept_bytes - kept) <= IN_FLIGHT
        kept = run.kept_bytes
    assert kept > 0
    assert sent == SIZE - kept
    assert not list(tmp_path.rglob("*.incomplete"))
