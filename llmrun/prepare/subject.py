"""A model as `bench` tests it: found and checked once, its weights loaded again only where layers move."""

import hashlib
from contextlib import suppress
from pathlib import Path

from llmrun.bench.grid import Setting
from llmrun.bench.subject import Need
from llmrun.engine.context import Context, ContextSettings
from llmrun.engine.model import ModelSettings
from llmrun.errors import LlmrunError, ModelFileError, UsageError
from llmrun.gguf.check import check_model
from llmrun.gguf.header import TensorInfo, open_header
from llmrun.gguf.info import ModelInfo, model_info
from llmrun.prepare.loading import Loading, find
from llmrun.prepare.planning import Planner, this_machine
from llmrun.prepare.settings import ContextWish, Room
from llmrun.report import Report

CHUNK_BYTES = 1 << 22


class OpenSubject:
    """Implements `llmrun.bench.subject.Subject`. Raises what finding and reading a model raises."""

    def __init__(self, reference: str, report: Report, settings: ModelSettings) -> None:
        self._report = report
        self.settings = settings
        self._found = find(reference, report)
        self.paths = self._found.paths
        self.name = self._found.name if Path(reference).suffix != ".gguf" else self.paths[0].stem
        headers = tuple(map(open_header, self.paths))
        check_model(headers[0])
        self.info: ModelInfo = model_info(*headers)
        if not self.info.causal:
            raise ModelFileError(f"{self.name} is an embedding model: it decodes no tokens")
        self._headers = headers
        self.tensors: tuple[TensorInfo, ...] = tuple(tensor for header in headers for tensor in header.tensors)
        self.sha256 = _hash(self.paths, report)
        self._loading: Loading | None = None
        self._loaded_for: int | None = None
        self._largest: dict[int | None, Need] = {}  # by layers on the GPU: what their loading leaves room for

    def check(self, setting: Setting, need: Need) -> None:
        limit = self.info.n_ctx_train
        if limit and need.n_ctx // need.n_seq_max > limit:
            raise UsageError(
                f"a test needs {need.n_ctx // need.n_seq_max} tokens of context, {self.name} was trained for {limit}",
                "give a smaller -p, -n or --depth",
            )
        Planner(self.info, self._headers, _wish(setting), this_machine()).first(self._room(need))
        before = self._largest.get(setting.gpu_layers, need)
        self._largest[setting.gpu_layers] = max(before, need, key=lambda one: one.n_ctx)

    def open(self, setting: Setting, need: Need) -> Context:
        if self._loading is None or self._loaded_for != setting.gpu_layers:
            self.close()
            room = self._room(self._largest.get(setting.gpu_layers, need))
            self._loading = Loading(self._found, self.settings, self._report, _wish(setting), room)
            self._loaded_for = setting.gpu_layers
        model = self._loading.model()
        plan = self._loading.settle(self._room(need), _wish(setting))
        return Context(
            model,
            ContextSettings(
                n_ctx=need.n_ctx,
                n_batch=setting.n_batch,
                n_ubatch=setting.n_ubatch,
                n_seq_max=need.n_seq_max,
                n_threads=setting.n_threads,
                kv_type=setting.kv_type,
                flash_attn=setting.flash_attn,
                kv_on_cpu=plan.kv_on_cpu,
                n_outputs=need.n_outputs,
            ),
        )

    def close(self) -> None:
        loading, self._loading = self._loading, None
        if loading is not None:
            with suppress(LlmrunError):  # a load that was stopped or failed has left nothing
                loading.model().close()

    def _room(self, need: Need) -> Room:
        # The sequences together may be longer than any one of them may be.
        n_ctx = min(need.n_ctx, self.info.n_ctx_train or need.n_ctx)
        return Room(n_ctx, n_ctx, need.n_seq_max, need.n_outputs or need.n_seq_max)


def _wish(setting: Setting) -> ContextWish:
    return ContextWish(
        n_threads=setting.n_threads,
        n_batch=setting.n_batch,
        n_ubatch=setting.n_ubatch,
        flash_attn=setting.flash_attn,
        kv_type=setting.kv_type,
        gpu_layers=setting.gpu_layers,
    )


def _hash(paths: tuple[Path, ...], report: Report) -> str:
    """sha256 of the file, or of its parts one after the other. It also brings them into the page cache."""
    total, done = sum(path.stat().st_size for path in paths), 0
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                done += len(chunk)
                report.progress("hashing", done, total)
    return digest.hexdigest()
