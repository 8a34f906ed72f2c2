"""A comparison of several files of one model, from their references."""

from collections.abc import Callable, Sequence

from llmrun.engine.model import Model
from llmrun.errors import UsageError
from llmrun.evals.comparison import Comparison, Row, mark_best
from llmrun.evals.divergence import Divergence, measure_divergence
from llmrun.evals.perplexity import measure_perplexity
from llmrun.evals.speed import measure_speed
from llmrun.gguf.header import open_header
from llmrun.gguf.info import model_info
from llmrun.prepare.measuring import load, measuring_threads, text_for
from llmrun.quant.calibration import REPORT_SEED
from llmrun.report import Report


def compare(
    references: Sequence[str],
    base: str | None,
    file: str | None,
    *,
    report: Report,
    threads: int | None,
    stop: Callable[[], bool],
    n_ctx: int = 512,
    n_chunks: int | None = None,
    gpu_layers: int = -1,
    with_reference: bool = False,
) -> Comparison:
    """`base` is the model that the others are compared with, None for perplexity alone; it has a row of its own
    `with_reference`. Without a file the text is the base's own (else the first model's). One model beside the base is
    in memory at a time."""
    if not references:
        raise UsageError("there is no model to report on", "llmrun report A B C [--reference F16]")
    n_threads = measuring_threads(threads)
    reference = load(base, report, gpu_layers)[0] if base else None
    common = {"report": report, "n_threads": n_threads, "n_ctx": n_ctx, "n_chunks": n_chunks, "stop": stop}
    text, text_name, rows = "", "", []
    for name in [*references, *([base] if base and with_reference and base not in references else [])]:
        is_base = name == base and reference is not None
        model, found = (reference, None) if is_base and reference else load(name, report, gpu_layers)
        try:
            if not text:
                text, text_name = text_for(
                    file, "to compare on", reference or model, report, n_threads, REPORT_SEED, stop
                )
            measured = (
                measure_divergence(model, reference, text, **common)  # type: ignore[arg-type]
                if reference is not None
                else measure_perplexity(model, text, **common)  # type: ignore[arg-type]
            )
            rows.append(_row(name, model, found.paths if found else (model.path,), measured, n_threads))
            n_done = measured.n_chunks
        finally:
            if not is_base:
                model.close()
    if reference is not None:
        reference.close()
    return Comparison(base or "", text_name, n_ctx, n_done, mark_best(rows))


def _row(name: str, model: Model, paths: Sequence[object], measured: object, n_threads: int) -> Row:
    info = model_info(*(open_header(path) for path in paths))  # type: ignore[arg-type]
    speed = measure_speed(model, n_threads)
    divergence = measured if isinstance(measured, Divergence) else None
    perplexity = measured.perplexity  # type: ignore[attr-defined]
    return Row(
        name=name,
        path=str(paths[0]),
        quant=info.quant,
        size_bytes=info.size_bytes,
        bits_per_weight=info.bits_per_weight,
        perplexity=perplexity.value,
        perplexity_error=perplexity.error,
        divergence=divergence,
        prefill_tps=speed.prefill_tps,
        decode_tps=speed.decode_tps,
    )
