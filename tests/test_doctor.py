"""`llmrun doctor`, its facts and its findings."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llmrun.machine.features import cpu_features
from llmrun.machine.gpus import Gpu
from llmrun.prepare.checkup import Facts, Hub, gather
from llmrun.prepare.findings import findings
from tests.cli import llmrun
from tests.hub_server import Hub as HubServer


@pytest.fixture(scope="module")
def facts() -> Facts:
    """This machine's, made quiet and roomy."""
    found = gather(online=False)
    memory = found.machine.memory._replace(free_bytes=16_000_000_000)
    places = tuple(replace(place, free_bytes=100_000_000_000, writable=True) for place in found.places)
    return replace(
        found,
        software=replace(found.software, unused_features=()),
        machine=found.machine._replace(memory=memory, gpus=()),
        busy_cores=0.0,
        places=places,
        damaged=(),
    )


def test_a_machine_without_faults_has_no_findings(facts: Facts) -> None:
    assert findings(facts) == ()
    assert facts.software.llama_cpp_python == "0.3.36" and "CPU" in facts.software.backends
    assert facts.threads.n >= 1
    assert {place.name for place in facts.places} >= {"store", "hub", "settings", "state"}
    assert any("-DGGML_RPC=on" in build.command for build in facts.gpu_builds) or "RPC" in facts.software.backends


def test_each_fault_is_found_with_its_remedy(facts: Facts) -> None:
    machine, software, places = facts.machine, facts.software, facts.places
    rtx = Gpu("nvidia", "NVIDIA RTX 4090", reachable=True, strong=True)
    little = machine.memory._replace(free_bytes=500_000_000, limit_bytes=1_073_741_824, limit_name="container limit")
    for faulty, kind, text, remedy in (
        (replace(facts, software=replace(software, fault="no library")), "broken", "no library", "pip install"),
        (replace(facts, software=replace(software, llama_cpp_python="0.4.0")), "advice", "0.4.0", "==0.3.36"),
        (replace(facts, software=replace(software, unused_features=("AVX512",))), "advice", "AVX512", "GGML_NATIVE"),
        (replace(facts, machine=machine._replace(memory=little)), "advice", "container limit of 1.1 GB", "limit"),
        (replace(facts, machine=machine._replace(gpus=(rtx,))), "advice", "RTX 4090", "-DGGML_CUDA=on"),
        (replace(facts, busy_cores=1.5), "advice", "keep 1.5 of", "close"),
        (replace(facts, places=(replace(places[0], writable=False),)), "broken", "cannot be written", "LLMRUN_HOME"),
        (replace(facts, places=(replace(places[1], free_bytes=5),)), "advice", "5 B is free", "HF_HOME"),
        (replace(facts, damaged=("m: cut off",)), "broken", "m: cut off", "llmrun pull"),
        (replace(facts, offline=True), "advice", "HF_HUB_OFFLINE", "unset"),
        (replace(facts, hub=Hub("https://hub", False, 1.0, "no route")), "broken", "no route", "HTTPS_PROXY"),
    ):
        (finding,) = findings(faulty)
        assert (finding.kind, text in finding.text, remedy in finding.remedy) == (kind, True, True), finding


def test_what_is_broken_comes_first(facts: Facts) -> None:
    found = findings(replace(facts, busy_cores=2.0, damaged=("m: cut off",)))
    assert [finding.kind for finding in found] == ["broken", "advice"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_features_of_the_processor(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512f fma sse2\n")
    (tmp_path / "arm").mkdir()
    (tmp_path / "arm/cpuinfo").write_text("processor: 0\nFeatures: fp asimd asimddp i8mm\n")
    both = cpu_features(tmp_path) | cpu_features(tmp_path / "arm")
    assert both in ({"AVX2", "AVX512", "FMA"}, {"NEON", "DOTPROD", "MATMUL_INT8"})
    assert cpu_features(tmp_path / "none") == frozenset()


def test_the_command_prints_and_exits_by_what_it_found() -> None:
    result = llmrun("doctor")
    assert "llama-cpp-python 0.3.36" in result.text and "\x1b" not in result.text
    assert result.status == int("broken:" in result.text)
    found = json.loads(llmrun("doctor", "--json").text)
    assert set(found) == {
        "software", "machine", "busy_cores", "threads", "places", "damaged", "offline", "hub", "gpu_builds",
        "findings",
    }  # fmt: skip
    assert found["hub"] is None and found["machine"]["cores"]["usable"] >= 1


def test_the_hub_is_asked_only_online() -> None:
    with HubServer() as hub:
        env = {"HF_ENDPOINT": hub.url}
        assert "not asked" in llmrun("doctor", env=env).text
        assert not hub.log
        assert f"{hub.url}: " in llmrun("doctor", "--online", env=env).text
        assert hub.log
    gone = llmrun("doctor", "--online", "--json", env={"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert gone.status == 1
    assert any("does not answer" in finding["text"] for finding in json.loads(gone.text)["findings"])


def test_a_library_that_does_not_load_is_a_finding(tmp_path: Path) -> None:
    result = llmrun("doctor", "--json", env={"LLAMA_CPP_LIB_PATH": str(tmp_path)})
    assert result.status == 1, result.err
    found = json.loads(result.text)
    assert found["software"]["fault"] and found["findings"][0]["kind"] == "broken"
