"""`bench --drift`: what each setting does to the answers."""

from contextlib import closing

from llmrun.bench.drift import Drift, run_drift
from llmrun.bench.environment import read_environment
from llmrun.bench.stop import Stop
from llmrun.cli.benching.flow import INTERRUPTED, Options, check_format, open_subjects, pick_threads
from llmrun.cli.benching.show import Shown
from llmrun.cli.benching.status import BenchReport
from llmrun.cli.terminal.interrupts import on_interrupt
from llmrun.errors import Interrupted, UsageError

FAILED = 1


def run_drifts(options: Options) -> int:
    """Show a row for each thing that was changed. The status is 1 where repeats of one setting differ."""
    check_format(options.format)
    if options.latency or options.concurrency or options.save or options.compare or options.plot:
        raise UsageError("--drift stands alone: without --latency, --concurrency, --save, --compare and --plot")
    report, stop = BenchReport(), Stop()
    threads = pick_threads(options.grid)
    if options.format == "csv":
        raise UsageError("--drift has no CSV", "--format jsonl has a line for each setting")
    settings = options.grid.settings(threads.n)
    if len(settings) > 1:
        raise UsageError("--drift changes one setting at a time: give one value of each")
    subjects = open_subjects(options, report)
    machine, build = read_environment()
    shown = Shown(options.format, machine, build, threads, quiet=options.quiet, drifts=[])
    found: list[Drift] = []
    interrupted = False
    with on_interrupt(stop.ask):
        try:
            for subject in subjects:
                with closing(subject):
                    for drift in run_drift(subject, settings[0], machine.cores_usable, stop, report):
                        found.append(drift)
        except (Interrupted, KeyboardInterrupt):
            interrupted = True
        finally:
            report.close()
    shown.sentences += [f"finding: {drift.model}: {drift.finding}" for drift in found if drift.finding]
    shown.drifts = found
    shown.finish(interrupted=interrupted)
    return INTERRUPTED if interrupted else FAILED if any(drift.finding for drift in found) else 0
