"""Which package indexes this machine is set up with: UV_* and PIP_* variables and pip's configuration files."""

import os
import sys
from configparser import Error as ConfigError
from configparser import RawConfigParser
from pathlib import Path
from typing import NamedTuple

PYPI = "https://pypi.org/simple"


class Settings(NamedTuple):
    """Addresses of simple indexes, and of pages or folders that list wheels, in the order to ask them."""

    indexes: tuple[str, ...]
    find_links: tuple[str, ...]


def read_settings() -> Settings:
    """uv's variables add to pip's, and its index comes before pip's."""
    pip = _pip_files()
    for name, value in os.environ.items():
        if name.startswith("PIP_") and value:
            pip[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    find_links = [*_uv("UV_FIND_LINKS"), *pip.get("find-links", "").split()]
    if _is_true(pip.get("no-index", "")) or _is_true(os.environ.get("UV_NO_INDEX", "")):
        return Settings((), tuple(find_links))
    first = [*_uv("UV_DEFAULT_INDEX"), *_uv("UV_INDEX_URL"), *pip.get("index-url", "").split(), PYPI][0]
    more = [*_uv("UV_INDEX"), *_uv("UV_EXTRA_INDEX_URL"), *pip.get("extra-index-url", "").split()]
    return Settings(tuple(dict.fromkeys([first, *more])), tuple(dict.fromkeys(find_links)))


def _uv(name: str) -> list[str]:
    """uv lets each address be written as NAME=ADDRESS, and takes commas between find-links."""
    words = os.environ.get(name, "").replace(",", " ").split()
    return [word.partition("=")[2] if "://" not in word.partition("=")[0] and "=" in word else word for word in words]


def _is_true(text: str) -> bool:
    return text.strip().lower() in ("1", "true", "yes", "on", "t", "y")


def _pip_files() -> dict[str, str]:
    """pip's files, the later winning, then [download] over [global]: as in pip's own configuration.py."""
    sections: dict[str, dict[str, str]] = {"global": {}, "download": {}}
    for file in _paths():
        parser = RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (ConfigError, UnicodeDecodeError, OSError):
            continue
        for name, found in sections.items():
            if parser.has_section(name):
                found |= {key.replace("_", "-"): value for key, value in parser.items(name) if value}
    return sections["global"] | sections["download"]


def _paths() -> list[Path]:
    """Global, user, environment's own, then PIP_CONFIG_FILE, which takes the user's place; devnull means none."""
    named = os.environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    name = "pip.ini" if os.name == "nt" else "pip.conf"
    user = [] if named and Path(named).exists() else _user_paths(name)
    return [*_global_paths(name), *user, Path(sys.prefix) / name, *([Path(named)] if named else [])]


def _global_paths(name: str) -> list[Path]:
    if os.name == "nt":
        return [Path(os.environ.get("PROGRAMDATA", "C:\\ProgramData")) / "pip" / name]
    if sys.platform == "darwin":
        return [Path("/Library/Application Support/pip") / name]
    folders = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    return [*(Path(folder) / "pip" / name for folder in folders.split(":") if folder), Path("/etc") / name]


def _user_paths(name: str) -> list[Path]:
    """The old place, then the new one."""
    home = Path.home()
    if os.name == "nt":
        return [home / "pip" / name, Path(os.environ.get("APPDATA", home)) / "pip" / name]
    new = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    if sys.platform == "darwin" and (home / "Library/Application Support/pip").is_dir():
        new = home / "Library/Application Support"
    return [home / ".pip" / name, new / "pip" / name]
