"""Which of a repo's files is meant: by the type that was asked for, or the best that fits. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from llmrun.errors import NotFoundError, UsageError
from llmrun.models.names import visible
from llmrun.models.quants import FULL_PRECISION, ModelFiles, NamedFile, group_models, parse_quant
from llmrun.report import size_text

DEFAULT_TYPE = "Q4_K_M"


class Choice(NamedTuple):
    """`note` says what was taken where the user left the choice open and got no Q4_K_M; else ""."""

    model: ModelFiles
    note: str = ""


def choose(files: Sequence[NamedFile], repo: str, quant: str | None = None, fit_bytes: int | None = None) -> Choice:
    """One model out of `files`. `quant` is a type in any spelling, or a file's name; without one Q4_K_M, else
    the largest quantized one of at most `fit_bytes`.

    Raises UsageError, with the types there are, for one that is absent or ambiguous; NotFoundError where
    there is no GGUF model or a part of the chosen one is missing.
    """
    models = group_models(files, repo)
    if not models:
        raise NotFoundError(f"{repo} holds no GGUF model", "look for a repo whose name ends in -GGUF")
    choice = Choice(asked_for(models, repo, quant)) if quant else _best(models, repo, fit_bytes)
    return Choice(_whole(choice.model, repo), choice.note)


def choose_file(files: Sequence[NamedFile], repo: str, filename: str) -> ModelFiles:
    """The model that the named file is, or is a part of. Raises NotFoundError."""
    named = _by_name(files, filename) or _by_name(files, filename.lower(), lower=True)
    if named is None:
        from difflib import get_close_matches

        names = [file.name for file in files if file.name.lower().endswith(".gguf")]
        near = get_close_matches(filename, names, n=1, cutoff=0.3) or names[:1]
        hint = f"did you mean hf:{repo}/{visible(near[0])}?" if near else "it has no GGUF file"
        raise NotFoundError(f"{repo} has no file '{visible(filename)}'", hint)
    models = group_models(files, repo)
    for model in models:
        if named in model.files:
            return _whole(model, repo)
    return ModelFiles((named,), parse_quant(named.name))


def _by_name(files: Sequence[NamedFile], name: str, lower: bool = False) -> NamedFile | None:
    return next((file for file in files if (file.name.lower() if lower else file.name) == name), None)


def _whole(model: ModelFiles, repo: str) -> ModelFiles:
    if model.missing:
        names = ", ".join(visible(name) for name in model.missing[:3])
        raise NotFoundError(
            f"{repo}: {model.label} is incomplete, {names} is missing", "it cannot run without all of its parts"
        )
    return model


def asked_for(models: list[ModelFiles], repo: str, quant: str) -> ModelFiles:
    """The model of that type, whole or not. Raises UsageError."""
    asked = quant.lower().removesuffix(".gguf").strip("-._")
    named = [model for model in models if _is_called(model, asked)]
    if named:
        return _only(named, repo, quant)
    want = parse_quant(asked)
    exact = [model for model in models if want and model.quant and model.quant.type == want.type]
    if want and want.prefix:
        exact = [model for model in exact if model.quant == want]
    family = [model for model in models if model.quant and _is_family(model.quant.type, asked)]
    found = _plain_first(exact or family)
    if not found:
        raise UsageError(f"{repo} has no {visible(quant)}", f"it has {_labels(models)}")
    return _only(found, repo, quant)


def _is_called(model: ModelFiles, asked: str) -> bool:
    """Whether a file's own name was typed, with or without its folder."""
    names = [file.name.lower().removesuffix(".gguf") for file in model.files]
    return any(name == asked or name.rpartition("/")[2] == asked for name in names)


def _is_family(type_: str, asked: str) -> bool:
    return type_.lower().startswith(f"{asked}_")


def _plain_first(models: list[ModelFiles]) -> list[ModelFiles]:
    """UD- and i1- files only where no plain one matches."""
    return [model for model in models if not (model.quant and model.quant.prefix)] or models


def _only(models: list[ModelFiles], repo: str, quant: str) -> ModelFiles:
    if len(models) == 1:
        return models[0]
    if len({model.label for model in models}) == len(models):
        raise UsageError(f"'{visible(quant)}' can be {_labels(models)} in {repo}", "write one of them in full")
    names = ", ".join(visible(model.files[0].name) for model in models[:8])
    raise UsageError(f"{repo} has several files of type {visible(quant)}: {names}", f"name one: hf:{repo}/FILE")


def _best(models: list[ModelFiles], repo: str, fit_bytes: int | None) -> Choice:
    default = _plain_first([model for model in models if model.quant and model.quant.type == DEFAULT_TYPE])
    if default:
        return Choice(_only(default, repo, DEFAULT_TYPE))
    if len(models) == 1:
        return Choice(models[0])
    typed = [model for model in models if model.quant]
    if not typed:
        names = ", ".join(visible(model.files[0].name) for model in models[:8])
        raise UsageError(f"{repo} has several models: {names}", f"name one: hf:{repo}/FILE")
    small = [model for model in typed if model.quant and model.quant.type not in FULL_PRECISION]
    small = small or [min(typed, key=_rank)]
    fitting = [model for model in small if fit_bytes is None or model.size_bytes <= fit_bytes]
    best = max(fitting, key=_rank) if fitting else min(small, key=_rank)
    best = _only([model for model in small if model.quant == best.quant], repo, best.label)
    why = "the best that fits here" if fitting and fit_bytes is not None else "the best"
    why = why if fitting else "the smallest, though it is larger than this machine's memory"
    return Choice(best, f"{repo} has no {DEFAULT_TYPE}: taking {best.label} ({size_text(best.size_bytes)}), {why}")


def _rank(model: ModelFiles) -> tuple[int, bool]:
    return model.size_bytes, not (model.quant and model.quant.prefix)


def _labels(models: list[ModelFiles]) -> str:
    return ", ".join(dict.fromkeys(visible(model.label) for model in models))
