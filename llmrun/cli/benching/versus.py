"""`bench --ab`: two settings in turn in one run."""

from contextlib import ExitStack, closing

from llmrun.bench.environment import read_environment
from llmrun.bench.flags import with_flags
from llmrun.bench.run import Bench, Tests
from llmrun.bench.stop import Stop
from llmrun.bench.versus import check_sides, run_versus
from llmrun.cli.benching.flow import INTERRUPTED, Options, check_format, open_subjects, pick_threads, start_command
from llmrun.cli.benching.show import Shown
from llmrun.cli.benching.status import BenchReport
from llmrun.cli.terminal.interrupts import on_interrupt
from llmrun.errors import Interrupted, UsageError


def run_ab(options: Options, sides: tuple[str, str]) -> int:
    """Show the ratio of the second setting to the first, for each test of each model."""
    check_format(options.format)
    if options.latency or options.concurrency or options.save or options.compare or options.plot:
        raise UsageError("--ab stands alone: without --latency, --concurrency, --save, --compare and --plot")
    report, stop = BenchReport(), Stop()
    threads = pick_threads(options.grid)
    a, b = (with_flags(options.grid, text).cases(threads.n) for text in sides)
    check_sides(a, b)
    # Two loaded models only where the layers lie differently.
    apart = a[0].setting.gpu_layers != b[0].setting.gpu_layers
    pairs = list(zip(open_subjects(options, report), open_subjects(options, report), strict=True))
    machine, build = read_environment()
    bench = Bench(stop, report, machine.bandwidth_bytes_per_s, start_command, machine.device_bandwidth_bytes_per_s)
    for one, other in pairs:
        bench.check(one, Tests(loops=tuple(a)))
        bench.check(other, Tests(loops=tuple(b)))
    shown = Shown(options.format, machine, build, threads, quiet=options.quiet, differences=[], names=sides)
    status = 0
    with on_interrupt(stop.ask):
        try:
            for one, other in pairs:
                with ExitStack() as stack:
                    stack.enter_context(closing(one))
                    stack.enter_context(closing(other))
                    for found in run_versus((one, other if apart else one), a, b, stop, report):
                        shown.add_difference(found)
        except (Interrupted, KeyboardInterrupt):
            status = INTERRUPTED
        finally:
            report.close()
    shown.finish(interrupted=bool(status))
    return status
