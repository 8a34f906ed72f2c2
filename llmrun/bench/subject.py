"""The model under test, as this package needs it. Who finds, plans and loads it is not known here."""

from dataclasses import dataclass
from typing import Protocol

from llmrun.bench.grid import Setting
from llmrun.engine.context import Context
from llmrun.gguf.header import TensorInfo
from llmrun.gguf.info import ModelInfo


@dataclass(frozen=True)
class Need:
    """The largest context that tests of one setting need; `n_outputs` rows of logits from one decode (0: one for
    each sequence)."""

    n_ctx: int
    n_seq_max: int = 1
    n_outputs: int = 0


class Subject(Protocol):
    """One model. `sha256` is that of its file, `name` what results call it."""

    @property
    def name(self) -> str: ...

    @property
    def sha256(self) -> str: ...

    @property
    def info(self) -> ModelInfo: ...

    @property
    def tensors(self) -> tuple[TensorInfo, ...]: ...

    def check(self, setting: Setting, need: Need) -> None:
        """Raise UsageError or DoesNotFitError where such a context cannot be. Reads no weights."""

    def open(self, setting: Setting, need: Need) -> Context:
        """A context over the loaded model; the caller closes it."""

    def close(self) -> None:
        """Free the weights."""
