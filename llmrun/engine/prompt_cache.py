"""Prefix states on disk: the KV cache of a conversation, to go on with in a later process.

A state belongs to one model file, build and KV type; its file name is a digest of those and of the owner's name.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from llmrun.engine import capi
from llmrun.engine.context import Context

LIMIT_BYTES = 4_000_000_000  # of all states together


@dataclass(frozen=True)
class PromptCache:
    """A folder of states. The least recently used are removed beyond `limit_bytes`."""

    folder: Path
    limit_bytes: int = LIMIT_BYTES

    def path_of(self, owner: str, context: Context) -> Path:
        """Where the state of `owner` is for this model, build and context type."""
        stat = context.model.path.stat()
        settings = context.settings
        facts = (
            owner,
            str(context.model.path.resolve()),
            stat.st_size,
            stat.st_mtime_ns,
            capi.version(),
            settings.kv_type,
            settings.flash_attn,
            settings.rope_scaling,
            settings.rope_scale,
        )
        digest = hashlib.sha256(repr(facts).encode("utf-8", "surrogateescape")).hexdigest()
        return self.folder / f"{digest[:32]}.kv"

    def save(self, owner: str, context: Context, seq_id: int, tokens: list[int]) -> int:
        """Keep a sequence's state; returns the bytes written, 0 where that failed or there is nothing to keep."""
        if not tokens:
            return 0
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path_of(owner, context)
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            n_bytes = context.save(seq_id, part, tokens)
            if n_bytes:
                part.replace(path)
                self.prune(keep=path)
            return n_bytes
        finally:
            part.unlink(missing_ok=True)

    def restore(self, owner: str, context: Context, seq_id: int) -> list[int]:
        """Load the state of `owner` into a sequence; returns its tokens, none where there is no valid state."""
        path = self.path_of(owner, context)
        if not path.is_file():
            return []
        tokens = context.restore(seq_id, path, context.n_ctx)
        if tokens:
            os.utime(path)
        else:
            context.remove(seq_id, 0)
            path.unlink(missing_ok=True)
        return tokens

    def prune(self, keep: Path | None = None) -> None:
        """Remove the oldest states until the rest fits the limit; `keep` stays."""
        states = sorted(self.folder.glob("*.kv"), key=lambda path: path.stat().st_mtime, reverse=True)
        total = 0
        for path in states:
            total += path.stat().st_size
            if total > self.limit_bytes and path != keep:
                path.unlink(missing_ok=True)
