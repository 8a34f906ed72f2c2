"""One run of `bench`: models are found and every test is checked before anything runs; rows come as they finish."""

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from llmrun.bench.compare import check_comparable, compare_rows
from llmrun.bench.concurrency import Load, knee_sentence
from llmrun.bench.environment import read_environment
from llmrun.bench.grid import Grid, Setting
from llmrun.bench.history import check_free, load, save
from llmrun.bench.plot import check_plot, draw
from llmrun.bench.row import Row
from llmrun.bench.run import Bench, Tests
from llmrun.bench.stop import Stop
from llmrun.bench.subject import Subject
from llmrun.cli.benching.show import FORMATS, Shown
from llmrun.cli.benching.status import BenchReport
from llmrun.cli.terminal.interrupts import on_interrupt
from llmrun.engine.model import ModelSettings
from llmrun.errors import Interrupted, UsageError
from llmrun.machine.cores import read_cores
from llmrun.machine.threads import ThreadChoice, choose_threads
from llmrun.prepare.subject import OpenSubject

INTERRUPTED = 130
SERVED_PROMPT = 128  # tokens: --concurrency without -p


@dataclass(frozen=True)
class Options:
    """What the command line says. `n_prompt_given`: -p was on it. `concurrency` is empty without the flag."""

    references: tuple[str, ...]
    grid: Grid
    n_prompt_given: bool = False
    latency: bool = False
    concurrency: tuple[int, ...] = ()
    shared_prefix: int = 0
    save: str | None = None
    compare: str | None = None
    force: bool = False
    plot: Path | None = None
    compare_anyway: bool = False
    format: str = "table"
    mmap: bool = True
    quiet: bool = False


def run_bench(options: Options) -> int:
    """Measure, show, and return the exit status. After Ctrl-C the rows that are finished are shown."""
    check_format(options.format)
    if options.save is not None:
        check_free(options.save, replace=options.force)
    if options.plot is not None:
        check_plot(options.plot, replace=options.force)
    before = load(options.compare) if options.compare is not None else None
    report, stop = BenchReport(), Stop()
    threads = pick_threads(options.grid)
    tests = make_tests(options, threads.n)
    subjects = open_subjects(options, report)
    machine, build = read_environment()
    if before is not None and not options.compare_anyway:
        check_comparable(before.machine, before.rows, machine, [subject.sha256 for subject in subjects])
    bench = Bench(stop, report, machine.bandwidth_bytes_per_s, start_command, machine.device_bandwidth_bytes_per_s)
    for subject in subjects:
        bench.check(subject, tests)
    shown = Shown(options.format, machine, build, threads, quiet=options.quiet)
    status = 0
    with on_interrupt(stop.ask):
        try:
            for row in _rows(bench, subjects, tests):
                shown.add(row)
        except (Interrupted, KeyboardInterrupt):
            status = INTERRUPTED
        finally:
            report.close()
    shown.sentences += knees(shown.rows)
    if before is not None:
        shown.differences = compare_rows(before.rows, shown.rows, anyway=options.compare_anyway)
        shown.names = (options.compare or "", "now")
    shown.finish(interrupted=bool(status))
    if options.save is not None and shown.rows:
        report.note(f"kept as {options.save}: {save(options.save, machine, build, shown.rows)}")
    if options.plot is not None and shown.rows:
        report.note(f"drawn: {options.plot}" if draw(shown.rows, options.plot) else "there is nothing to draw")
    return status


def check_format(name: str) -> None:
    if name not in FORMATS:
        raise UsageError(f"--format {name} is none of {', '.join(FORMATS)}")


def make_tests(options: Options, n_threads: int) -> Tests:
    """Without --latency and --concurrency the loops of llama-bench, with either only what it names."""
    grid = options.grid
    if not options.latency and not options.concurrency:
        return Tests(loops=tuple(grid.cases(n_threads)))
    shaped = replace(grid, n_prompt=(), n_gen=(), depth=(0,))
    requests = replace(shaped, pairs=grid.pairs or _pairs(grid.n_prompt, grid.n_gen))
    served = (SERVED_PROMPT,) if not options.n_prompt_given else grid.n_prompt
    loads = replace(shaped, pairs=grid.pairs or _pairs(served, grid.n_gen))
    tests = Tests(start_repeats=grid.repeats[0])
    if options.latency:
        cases = tuple(requests.cases(n_threads))
        tests = replace(tests, requests=cases, starts=tuple(dict.fromkeys(case.setting for case in cases)))
    if options.concurrency:
        cases = tuple(loads.cases(n_threads))
        shortest = min(case.n_prompt for case in cases)
        if options.shared_prefix >= shortest:
            raise UsageError(
                f"--shared-prefix {options.shared_prefix} leaves nothing of a prompt of {shortest} tokens"
            )
        made = tuple(Load(case, n, options.shared_prefix) for case in cases for n in options.concurrency)
        tests = replace(tests, loads=made)
    return tests


def _pairs(n_prompt: tuple[int, ...], n_gen: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((prompt, gen) for prompt in n_prompt for gen in n_gen if prompt and gen)


def open_subjects(options: Options, report: BenchReport) -> list[OpenSubject]:
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


def start_command(subject: Subject, setting: Setting) -> list[str]:
    """A run of this program, with the settings of the other rows, that answers with a few tokens. What was not asked
    for is left out, as people do: a run without wishes starts sooner."""
    assert isinstance(subject, OpenSubject)
    usual = Grid().settings(setting.n_threads)[0]
    layers = "all" if setting.gpu_layers == -1 else str(setting.gpu_layers)
    command = [sys.executable, "-m", "llmrun", "run", str(subject.paths[0]), "Once upon a time", "--raw", "-q"]
    command += ["-n", "8", "--temp", "0", "-c", "512", "-t", str(setting.n_threads)]
    command += ["-g", layers] if setting.gpu_layers != usual.gpu_layers else []
    command += ["-b", str(setting.n_batch)] if setting.n_batch != usual.n_batch else []
    command += ["-ub", str(setting.n_ubatch)] if setting.n_ubatch != usual.n_ubatch else []
    command += ["--kv-type", ",".join(setting.kv_type)] if setting.kv_type != usual.kv_type else []
    command += ["-fa", setting.flash_attn] if setting.flash_attn != usual.flash_attn else []
    return command if subject.settings.mmap else [*command, "--no-mmap"]


def knees(rows: list[Row]) -> list[str]:
    """A sentence for each series of concurrency rows."""
    rows = [row for row in rows if row.kind == "concurrency"]
    series = groupby(rows, key=lambda row: (row.model, row.test, row.threads, row.batch, row.ubatch, row.kv_type))
    said = [(key, knee_sentence(list(group))) for key, group in series]
    return [f"{key[0]} {key[1]}: {sentence}" for key, sentence in said if sentence]


def _rows(bench: Bench, subjects: list[OpenSubject], tests: Tests) -> Iterator[Row]:
    for subject in subjects:
        with closing(subject):
            yield from bench.run(subject, tests)
