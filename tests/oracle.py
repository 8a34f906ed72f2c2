"""jsonschema as the judge of what a grammar lets through, with formats checked by the standard library."""

import datetime
import ipaddress
import re
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import jsonschema

FORMATS = jsonschema.FormatChecker(formats=())


def _check(name: str) -> Callable[[Callable[[str], bool]], None]:
    def register(check: Callable[[str], bool]) -> None:
        FORMATS.checks(name, raises=ValueError)(lambda value: not isinstance(value, str) or check(value))

    return register


def _is_date(text: str) -> bool:
    return bool(datetime.date.fromisoformat(text)) and len(text) == 10


def _is_time(text: str) -> bool:
    zoned = re.fullmatch(r"([0-9:]{8})(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})", text)
    return zoned is not None and datetime.time.fromisoformat(zoned[1] + zoned[3].replace("Z", "+00:00")) is not None


@_check("date-time")
def is_date_time(text: str) -> bool:
    date, _, time = text.partition("T")
    return _is_date(date) and _is_time(time)


@_check("uuid")
def is_uuid(text: str) -> bool:
    return str(uuid.UUID(text)) == text


@_check("ipv4")
def is_ipv4(text: str) -> bool:
    return bool(ipaddress.IPv4Address(text))


@_check("ipv6")
def is_ipv6(text: str) -> bool:
    return ipaddress.IPv6Address(text) is not None


def _is_hostname(text: str) -> bool:
    return len(text) < 254 and all(re.fullmatch("(?!-)[A-Za-z0-9-]{1,63}(?<!-)", part) for part in text.split("."))


@_check("email")
def is_email(text: str) -> bool:
    name, _, host = text.partition("@")
    return re.fullmatch(r"[\w+-]+(\.[\w+-]+)*", name) is not None and len(name) < 65 and _is_hostname(host)


@_check("uri")
def is_uri(text: str) -> bool:
    parts = urlsplit(text)
    return parts.scheme in ("http", "https") and _is_hostname(str(parts.hostname)) and (parts.port or 1) > 0


@_check("duration")
def is_duration(text: str) -> bool:
    return re.fullmatch(r"P(?!$)(\d+W|(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?)", text) is not None


_check("date")(_is_date)
_check("time")(_is_time)
_check("hostname")(_is_hostname)


def faults(schema: Any, value: Any) -> list[str]:
    """What is wrong with a value, by the schema."""
    validator = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def is_schema(schema: Any) -> bool:
    """Whether it is a schema by the metaschema."""
    return jsonschema.Draft202012Validator(jsonschema.Draft202012Validator.META_SCHEMA).is_valid(schema)
