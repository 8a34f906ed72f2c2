"""What quality measurements start from: a loaded model, its threads, and a text."""

from collections.abc import Callable
from pathlib import Path

from llmrun.engine.model import Model, ModelSettings
from llmrun.errors import NotFoundError, UsageError
from llmrun.machine.cores import read_cores
from llmrun.models.resolve import Resolved
from llmrun.prepare.loading import Loading, find
from llmrun.report import Report


def load(reference: str, report: Report, gpu_layers: int = -1) -> tuple[Model, Resolved]:
    """The model with all weights loaded; nothing is planned, since a measurement's context is small."""
    found = find(reference, report)
    return Loading(found, ModelSettings(gpu_layers=gpu_layers), report).model(), found


def measuring_threads(threads: int | None) -> int:
    """Fixed by the machine, not by its load: the number of threads changes rounding."""
    return threads or read_cores().usable


def read_text(file: str) -> str:
    """Raises NotFoundError, UsageError for what is no UTF-8 text."""
    path = Path(file).expanduser()
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"{file}: no such file") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text at byte {error.start}", "convert it: iconv -t UTF-8") from None
    except OSError as fault:
        raise UsageError(f"{file} cannot be read: {fault.strerror or fault}") from None
    return text.removesuffix("\n")  # as llama.cpp's programs read a prompt file


def text_for(
    file: str | None, use: str, model: Model, report: Report, n_threads: int, seed: int, stop: Callable[[], bool]
) -> tuple[str, str]:
    """The text and its name: a file's, else one that the model writes. `use` says in a note what it is for."""
    from llmrun.quant.calibration import write_text

    if file is not None:
        return read_text(file), file
    report.note(f"no text was given: the model writes one {use} (seed {seed})")
    text = write_text(model, report=report, n_threads=n_threads, seed=seed, stop=stop)
    return text, f"written by the model, seed {seed}"
