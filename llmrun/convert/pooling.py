"""How a sentence-transformers model pools its tokens into one vector."""

from pathlib import Path, PurePosixPath

import gguf

from llmrun.convert.config import Config
from llmrun.convert.files import read_json, read_object, shown
from llmrun.errors import ConvertError

_MODES = {"mean": gguf.PoolingType.MEAN, "cls": gguf.PoolingType.CLS, "lasttoken": gguf.PoolingType.LAST}


def add_pooling(kv: gguf.GGUFWriter, folder: Path, config: Config) -> None:
    """The pooling type, where modules.json names a pooling module or config.json a classifier's pooling."""
    if (module := _pooling_module(folder)) is not None:
        kv.add_pooling_type(_pooling_type(module))
    if (mode := config.get("classifier_pooling")) is not None:
        if mode not in ("cls", "mean"):
            raise ConvertError(f"config.json: classifier_pooling {shown(repr(mode))}", "give --converter PATH")
        kv.add_uint32(f"{kv.arch}.classifier.pooling_type", _MODES[mode].value)


def _pooling_module(folder: Path) -> Path | None:
    path = folder / "modules.json"
    modules = read_json(path) if path.is_file() else []
    for module in modules if isinstance(modules, list) else []:
        if isinstance(module, dict) and str(module.get("type")).endswith("Pooling"):
            inner = PurePosixPath(str(module.get("path", "")))
            if inner.is_absolute() or ".." in inner.parts:
                raise ConvertError(f"modules.json names a folder {shown(str(inner))!r}", "fetch it again")
            return folder / inner / "config.json"
    return None


def _pooling_type(path: Path) -> gguf.PoolingType:
    pooling = read_object(path)
    for mode in ("mean_tokens", "cls_token", "lasttoken"):
        if pooling.get(f"pooling_mode_{mode}"):
            return _MODES[mode.partition("_")[0]]
    named = pooling.get("pooling_mode")
    if named not in _MODES:
        raise ConvertError(
            f"{path.parent.name}/config.json pools in a way llama.cpp does not (it knows mean, cls and last token)",
            "nothing can be done about it here",
        )
    return _MODES[named]
