"""`llmrun perplexity`: how well a model predicts a text, and how far it is from another."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from llmrun.cli.options import OutputOptions, count, setting, with_groups
from llmrun.cli.terminal.completion import any_model
from llmrun.cli.terminal.interrupts import on_interrupt

if TYPE_CHECKING:
    from llmrun.evals.divergence import Divergence
    from llmrun.evals.perplexity import Perplexity


@with_groups
def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", show_default=False, autocompletion=any_model)],
    *,
    file: Annotated[
        str | None, typer.Option("-f", "--file", help="The text; without it, one the model writes.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", "--base", help="A better file of the model to compare with.")
    ] = None,
    ctx: Annotated[int, typer.Option("-c", "--ctx", help="Tokens a chunk.")] = 512,
    chunks: Annotated[int | None, typer.Option("--chunks", help="At most so many chunks.", min=1)] = None,
    threads: Annotated[int | None, setting("-t --threads", "CPU threads.", min=1)] = None,
    gpu_layers: Annotated[str | None, setting("-g --gpu-layers --n-gpu-layers", "Layers on the GPU.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    output: OutputOptions,
) -> None:
    """Perplexity of a text by llama.cpp's rule, so that numbers compare; with --reference also KL divergence.

    llmrun perplexity smollm2 -f text.txt

    llmrun perplexity model-Q4_K_M.gguf --reference model-F16.gguf -f text.txt
    """
    from llmrun.cli.terminal.reporting import StderrReport
    from llmrun.evals.divergence import Divergence, measure_divergence
    from llmrun.evals.perplexity import measure_perplexity
    from llmrun.prepare import measuring
    from llmrun.quant.calibration import REPORT_SEED

    report = StderrReport()
    layers = layers_on_gpu(gpu_layers)
    n_threads = measuring.measuring_threads(threads)
    loaded, _ = measuring.load(model, report, layers)
    base = measuring.load(reference, report, layers)[0] if reference else None
    with stopping() as stop:
        text, _ = measuring.text_for(file, "to be measured on", base or loaded, report, n_threads, REPORT_SEED, stop)
        common = {"report": report, "n_threads": n_threads, "n_ctx": ctx, "n_chunks": chunks, "stop": stop}
        result = (
            measure_divergence(loaded, base, text, **common)  # type: ignore[arg-type]
            if base
            else measure_perplexity(loaded, text, **common)  # type: ignore[arg-type]
        )
    if json:
        from llmrun.cli.output import print_json

        print_json(result)
        return
    print(_divergence_lines(result) if isinstance(result, Divergence) else _perplexity_line(result))


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """A question that is answered with yes after the first Ctrl-C."""
    asked = False

    def ask() -> None:
        nonlocal asked
        asked = True

    with on_interrupt(ask):
        yield lambda: asked


def layers_on_gpu(text: str | None) -> int:
    value = count(text, "gpu-layers", ("auto", "all"))
    return value if isinstance(value, int) else -1


def _perplexity_line(result: "Perplexity") -> str:
    ppl = result.perplexity
    return (
        f"perplexity {ppl.value:.4f} ± {ppl.error:.4f} ({result.n_chunks} chunks of {result.n_ctx} tokens, "
        f"{result.tps:.0f} tok/s)"
    )


def _divergence_lines(result: "Divergence") -> str:
    rows = (
        ("perplexity", f"{result.perplexity.value:.4f} ± {result.perplexity.error:.4f}"),
        ("of the reference", f"{result.reference_perplexity.value:.4f} ± {result.reference_perplexity.error:.4f}"),
        ("ratio", f"{result.ratio.value:.6f} ± {result.ratio.error:.6f}"),
        ("KL divergence, mean", f"{result.kld_mean.value:.6f} ± {result.kld_mean.error:.6f}"),
        ("KL divergence, median", f"{result.kld_median:.6f}"),
        ("KL divergence, 99 %", f"{result.kld_p99:.6f}"),
        ("same top token", f"{100 * result.same_top.value:.2f} ± {100 * result.same_top.error:.2f} %"),
        ("delta p, mean", f"{100 * result.delta_p_mean.value:.3f} ± {100 * result.delta_p_mean.error:.3f} %"),
        ("delta p, RMS", f"{100 * result.delta_p_rms:.3f} %"),
        ("text", f"{result.n_chunks} chunks of {result.n_ctx} tokens, {result.tps:.0f} tok/s"),
    )
    return "\n".join(f"{name:<22} {value}" for name, value in rows)
