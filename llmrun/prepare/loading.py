"""A model on its way into memory: found, checked, and loading in the background while other work goes on."""

import threading
import time
from pathlib import Path

from llmrun.engine.model import Model, ModelSettings
from llmrun.errors import LlmrunError
from llmrun.gguf.check import check_model
from llmrun.gguf.header import open_header
from llmrun.gguf.info import ModelInfo, model_info
from llmrun.models import resolve
from llmrun.models.catalog import Catalog, load_catalog
from llmrun.models.store import Store
from llmrun.report import Report


def find(reference: str, report: Report, catalog: Catalog | None = None) -> resolve.Resolved:
    """The model's files on this machine, fetched first where they are not here yet."""
    store = Store()
    found = resolve.resolve(reference, catalog or load_catalog(), store, report)
    return found if found.paths else resolve.fetch(found, store, report)


class Loading:
    """Reads and checks the header at once, then loads the weights in a thread until `model` is asked for."""

    def __init__(self, found: resolve.Resolved, settings: ModelSettings, report: Report) -> None:
        self.found = found
        self.path: Path = found.paths[0]
        self.header = open_header(self.path)
        check_model(self.header)
        self.info: ModelInfo = model_info(self.header, *map(open_header, found.paths[1:]))
        self.settings = settings
        self.load_s = 0.0
        self._report = report
        self._done = threading.Event()
        self._wanted = True
        self._model: Model | None = None
        self._error: LlmrunError | None = None
        threading.Thread(target=self._load, name="load", daemon=True).start()

    def _load(self) -> None:
        started = time.perf_counter()
        try:
            self._model = Model.load(self.path, self.settings, self._progress)
        except LlmrunError as error:
            self._error = error
        finally:
            self.load_s = time.perf_counter() - started
            self._done.set()

    def _progress(self, fraction: float) -> bool:
        self._report.progress("loading", int(fraction * self.info.size_bytes), self.info.size_bytes)
        return self._wanted

    def model(self) -> Model:
        """Wait for the weights. Raises EngineError; on KeyboardInterrupt the load stops first."""
        try:
            while not self._done.wait(0.2):  # a wait without a limit would not see Ctrl-C on Windows
                pass
        except KeyboardInterrupt:
            self._wanted = False
            self._done.wait(5)
            raise
        if self._error is not None:
            raise self._error
        assert self._model is not None
        return self._model
