"""The exception tree. Each error carries a message, a hint (the next thing to do) and an exit status.

They are raised where the fault is noticed and caught once, in `llmrun.cli`.
"""


class LlmrunError(Exception):
    """Something the user can act on: printed as `error: message` and `hint: hint`, never as a traceback."""

    exit_status = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(LlmrunError):
    """The command line (or a value in a settings file) cannot mean anything."""

    exit_status = 2


class Interrupted(LlmrunError):
    """Ctrl-C, where there is something to say beyond the exit status."""

    exit_status = 130


class ModelFileError(LlmrunError):
    """A file is not a model, is damaged, or holds what the engine cannot run."""


class NotFoundError(LlmrunError):
    """A reference names nothing on this machine nor at its source."""


class DownloadError(LlmrunError):
    """A source could not deliver: network, permission, checksum, disk."""


class StoreError(LlmrunError):
    """The local store is damaged, locked or full."""


class DoesNotFitError(LlmrunError):
    """Weights, KV cache and compute buffers exceed the memory there is."""


class EngineError(LlmrunError):
    """llama.cpp refused or failed: load, context, decode, sampler."""


class TemplateError(LlmrunError):
    """A chat template does not compile, refuses the messages, or exceeds its limits."""


class TemplateRefusedError(TemplateError):
    """A chat template refuses the messages it was given, in its own words."""

    exit_status = 2


class GrammarError(UsageError):
    """A grammar or JSON schema that cannot be enforced."""


class ConvertError(LlmrunError):
    """A checkpoint that cannot be converted."""


class QuantizeError(LlmrunError):
    """A quantization that cannot be done as asked."""
