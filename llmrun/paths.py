"""Where llmrun keeps things: cache (models), config (user files), state (sessions, measurements)."""

import os
from pathlib import Path


def home() -> Path | None:
    """`LLMRUN_HOME` moves cache, config and state together; unset, the platform's own directories serve."""
    value = os.environ.get("LLMRUN_HOME")
    return Path(value).expanduser().absolute() if value else None


def _platform_dir(kind: str) -> Path:
    root = home()
    if root is not None:
        return root / kind
    import platformdirs

    find = {
        "cache": platformdirs.user_cache_path,
        "config": platformdirs.user_config_path,
        "state": platformdirs.user_state_path,
    }
    return find[kind]("llmrun", appauthor=False)


def cache_dir() -> Path:
    """Model blobs and what can be made again."""
    return _platform_dir("cache")


def config_dir() -> Path:
    """The user's own `models.toml` and settings."""
    return _platform_dir("config")


def state_dir() -> Path:
    """Chat sessions, bench results, measurements of this machine."""
    return _platform_dir("state")


def expand(text: str) -> Path:
    """A path as a user types it: `~` is expanded even where the shell left it quoted."""
    return Path(text).expanduser()
