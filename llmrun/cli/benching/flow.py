"""One run of `bench`: models are found and every test is checked before anything runs; rows come as they finish."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from llmrun.bench.environment import read_environment
from llmrun.bench.grid import Case, Grid
from llmrun.bench.row import Row
from llmrun.bench.run import Bench, check_cases, run_cases
from llmrun.bench.stop import Stop
from llmrun.cli.benching.show import FORMATS, Shown
from llmrun.cli.terminal.interrupts import on_interrupt
from llmrun.cli.terminal.reporting import StderrReport
from llmrun.engine.model import ModelSettings
from llmrun.errors import Interrupted, UsageError
from llmrun.machine.cores import read_cores
from llmrun.machine.threads import ThreadChoice, choose_threads
from llmrun.prepare.subject import OpenSubject

INTERRUPTED = 130


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    references: tuple[str, ...]
    grid: Grid
    format: str = "table"
    mmap: bool = True
    quiet: bool = False


def run_bench(options: Options) -> int:
    """Measure, show, and return the exit status. After Ctrl-C the rows that are finished are shown."""
    if options.format not in FORMATS:
        raise UsageError(f"--format {options.format} is none of {', '.join(FORMATS)}")
    report = StderrReport()
    stop = Stop()
    threads = pick_threads(options.grid)
    cases = options.grid.cases(threads.n)
    subjects = open_subjects(options, report)
    for subject in subjects:
        check_cases(subject, cases)
    machine, build = read_environment()
    shown = Shown(options.format, machine, build, threads, quiet=options.quiet)
    status = 0
    with on_interrupt(stop.ask):
        try:
            for row in _rows(Bench(stop, report, machine.bandwidth_bytes_per_s), subjects, cases):
                shown.add(row)
        except Interrupted:
            status = INTERRUPTED
        finally:
            report.close()
    shown.finish(interrupted=bool(status))
    return status


def open_subjects(options: Options, report: StderrReport) -> list[OpenSubject]:
    """The models, by their headers. Raises UsageError where none is named."""
    if not options.references:
        raise UsageError("there is no model to measure", "for example: llmrun bench smollm2")
    settings = ModelSettings(mmap=options.mmap)
    return [OpenSubject(reference, report, settings) for reference in dict.fromkeys(options.references)]


def pick_threads(grid: Grid) -> ThreadChoice:
    """The load of the moment is ignored: it is warned of, and would make results that cannot be compared."""
    requested = grid.threads[0] if len(grid.threads) == 1 else None
    choice = choose_threads(read_cores(), 0.0, requested)
    if len(grid.threads) > 1:
        return ThreadChoice(choice.n, f"{choice.reason}; --threads tests {', '.join(map(str, grid.threads))}")
    return choice


def _rows(bench: Bench, subjects: list[OpenSubject], cases: list[Case]) -> Iterator[Row]:
    for subject in subjects:
        with closing(subject):
            yield from run_cases(bench, subject, cases)
