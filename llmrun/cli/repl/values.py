"""The settings of a conversation by name: what `/set` takes and `/show settings` shows."""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from llmrun.cli.answering.flow import Groups
from llmrun.cli.answering.wishes import context_wish, sampling_params
from llmrun.cli.options import LoadOptions, SamplingOptions
from llmrun.cli.repl.talk import TalkSettings
from llmrun.errors import UsageError

OWN = {"max_tokens": int, "template": str, "on_full": str, "reasoning": str}
RELOADING = ("gpu_layers", "no_mmap", "mlock")  # take effect with the next /model


def names() -> list[str]:
    """Every setting's name, as the flags spell it."""
    fields = [*SamplingOptions._fields, *LoadOptions._fields]
    return sorted(name.replace("_", "-") for name in [*OWN, *fields] if not name.startswith("cache_type"))


def change(settings: TalkSettings, name: str, value: str) -> bool:
    """Set one value; returns whether the context must be made anew. Raises UsageError and leaves all as it was."""
    field = {"num_ctx": "ctx", "num_predict": "max_tokens", "temperature": "temp"}.get(name, name.replace("-", "_"))
    if field in OWN:
        if field == "max_tokens":
            number = _convert(int, value, name)
            settings.max_tokens = None if number is None or number < 0 else number
        elif field == "on_full" and value not in ("shift", "recompute", "stop"):
            raise UsageError(f"on-full {value} is none of shift, recompute, stop")
        elif field == "reasoning" and value not in ("show", "hide"):
            raise UsageError(f"reasoning {value} is neither show nor hide")
        else:
            setattr(settings, field, value)
        return False
    for part, group in (("sampling", SamplingOptions), ("load", LoadOptions)):
        hints = get_type_hints(group, include_extras=False)
        if field in hints:
            new = getattr(settings.groups, part)._replace(**{field: _convert(hints[field], value, name)})
            settings.groups = _checked(settings.groups._replace(**{part: new}))
            return part == "load" and field not in RELOADING
    raise UsageError(f"there is no setting '{name}'", _near(name))


def _checked(groups: Groups) -> Groups:
    context_wish(groups.load)
    sampling_params(groups.sampling, "", {}, {})
    return groups


def _convert(hint: Any, text: str, name: str) -> Any:
    """The value in the option's type; `default` gives the setting back to the model."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    kinds = [kind for kind in (get_args(hint) if isinstance(hint, UnionType) else (hint,)) if kind is not type(None)]
    if text == "default":
        return None if bool not in kinds else False
    kind = kinds[0]
    try:
        if kind is bool:
            return {"on": True, "true": True, "off": False, "false": False}[text.lower()]
        if get_origin(kind) is list:
            return text.split()
        return kind(text)
    except (KeyError, ValueError):
        wanted = {bool: "on or off", int: "a whole number", float: "a number"}.get(kind, "text")
        raise UsageError(f"{name} takes {wanted}, not '{text}'") from None


def _near(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name.replace("_", "-"), names(), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else "/help set lists them"


def current(settings: TalkSettings) -> Iterator[tuple[str, str]]:
    """(name, value) of every setting that was given, and llmrun's own."""
    for field in OWN:
        value = getattr(settings, field)
        if value is not None:
            yield field.replace("_", "-"), str(value)
    for group in (settings.groups.sampling, settings.groups.load):
        for name, value in group._asdict().items():
            if value is not None and value is not False:
                yield name.replace("_", "-"), str(value)
