"""A model on its way into memory: found, checked, planned, and loading in the background while other work goes on."""

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from llmrun.engine import capi
from llmrun.engine.model import Model, ModelSettings
from llmrun.errors import LlmrunError
from llmrun.gguf.info import ModelInfo, model_info
from llmrun.machine.memory import read_memory
from llmrun.models import resolve
from llmrun.models.catalog import Catalog, load_catalog
from llmrun.models.store import Store
from llmrun.prepare.accepted import checked_headers
from llmrun.prepare.settings import ContextWish, Room
from llmrun.report import Report

QUICK_BYTES = 500_000_000  # what loads sooner than a bar would be of use
SMALL_SHARE = 16  # a model is small where this many of it fit into memory

if TYPE_CHECKING:
    from llmrun.plan.make import Plan
    from llmrun.prepare.planning import Planner


def find(
    reference: str, report: Report, catalog: Catalog | None = None, *, quantized: bool = True
) -> resolve.Resolved:
    """The model's files on this machine, fetched first where they are not here yet, and converted (and quantized,
    unless full precision is wanted) where only a checkpoint is there."""
    store = Store()
    found = resolve.resolve(reference, catalog or load_catalog(), store, report)
    if not found.paths:
        from llmrun.prepare.planning import this_machine, weights_budget

        found = resolve.fetch(found, store, report, weights_budget(this_machine()))
    if found.kind == "checkpoint":
        from llmrun.prepare.checkpoint import ready

        found = ready(found, report, quantized=quantized)
    return found


class Loading:
    """Reads and checks the header at once; plans and loads the weights in a thread until `model` is asked for.

    Without `room` nothing is planned: the model is loaded as `settings` say.
    """

    def __init__(
        self,
        found: resolve.Resolved,
        settings: ModelSettings,
        report: Report,
        wish: ContextWish | None = None,
        room: Room | None = None,
        *,
        start: bool = True,
    ) -> None:
        self.found = found
        self.path: Path = found.paths[0]
        self._headers = checked_headers(found.paths)
        self.header = self._headers[0]
        self.info: ModelInfo = model_info(*self._headers)
        self.settings = settings
        self.load_s = 0.0
        self._report = report
        self._wish, self._room = wish or ContextWish(), room
        self._planner: Planner | None = None
        self._plan: Plan | None = None
        self._done = threading.Event()
        self._wanted = True
        self._said = False
        self._model: Model | None = None
        self._error: LlmrunError | None = None
        if start:
            self.start()

    def start(self) -> None:
        # llama.cpp's log and progress come through Python: let the load have the interpreter soon each time.
        sys.setswitchinterval(0.0002)
        threading.Thread(target=self._load, name="load", daemon=True).start()

    def _load(self) -> None:
        started = time.perf_counter()
        try:
            unplanned = self.fits_in_any_case(self._wish)
            if self._room is not None and not unplanned:
                self._place(self._room)
            progress = self._progress if self.info.size_bytes > QUICK_BYTES else None
            unheard = unplanned and capi.log.sink is None
            self._model = Model.load(self.path, self.settings, progress, self.found.paths[1:], unheard=unheard)
        except LlmrunError as error:
            self._error = error
        finally:
            self.load_s = time.perf_counter() - started
            self._done.set()

    def fits_in_any_case(self, wish: ContextWish) -> bool:
        """Whether planning can wait until the weights are loaded, which frees the interpreter for other work: a small
        model, nothing unusual asked for, and no device to place layers on."""
        plain = wish._replace(n_ctx=None, n_threads=None) == ContextWish()
        if not plain or (wish.n_ctx or 0) > self.info.n_ctx_train or len(capi.devices()) > 1:
            return False
        return SMALL_SHARE * self.info.size_bytes < read_memory().free_bytes

    def _place(self, room: Room) -> None:
        # Imported here, beside what the main thread imports meanwhile.
        from llmrun.prepare.planning import Planner, model_settings, this_machine

        self._planner = Planner(self.info, self._headers, self._wish, this_machine(self._wish.rpc))
        self._plan = self._planner.first(room)
        self.settings = model_settings(self.settings, self._plan)

    def _progress(self, fraction: float) -> bool:
        self._report.progress("loading", int(fraction * self.info.size_bytes), self.info.size_bytes)
        return self._wanted

    def model(self) -> Model:
        """Wait for the weights. Raises what planning and loading raise; on KeyboardInterrupt the load stops first."""
        try:
            while not self._done.wait(0.2):  # a wait without a limit would not see Ctrl-C on Windows
                pass
        except KeyboardInterrupt:
            self.stop()
            raise
        if self._error is not None:
            raise self._error
        assert self._model is not None
        if self._room is not None and self._plan is None:
            self._place(self._room)
        if self._planner is not None and self._plan is not None and not self._said:
            self._said = True
            self._planner.report(self._plan, self._model.placed, self._report)
        return self._model

    def adopt(self, report: Report, wish: ContextWish, room: Room) -> None:
        """Go on for a caller that came later, with what it wants of the context."""
        self._report, self._wish, self._room = report, wish, room

    def stop(self) -> None:
        """Give up the load, if it still goes on, and wait for its end."""
        self._wanted = False
        self._done.wait(5)

    def n_ctx_limit(self, wish: ContextWish) -> int:
        """The longest context of the model, stretched by rope scaling where the user wants it; 0: not known."""
        from llmrun.plan.wish import context_limit
        from llmrun.prepare.planning import plan_wish

        return context_limit(self.info, plan_wish(wish, Room(0, 0)))

    def settle(self, room: Room, wish: ContextWish | None = None) -> "Plan":
        """The context's settings, now that the room is known, with the layers where they are. Notes what had to be
        given up. Raises UsageError and DoesNotFitError.
        """
        self.model()
        assert self._planner is not None and self._plan is not None  # `room` was given
        plan = self._planner.again(self._plan, room, wish or self._wish)
        for note in plan.notes:
            self._report.note(note)
        return plan
