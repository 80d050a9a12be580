"""What people write on a command line, as values: positions, times, durations, sizes.

Each parser takes the option's name, to be named in the usage error that it raises.
"""

import os
from typing import TYPE_CHECKING

import typer

from dlog.encryption.names import NAME_ALLOWED, is_key_name
from dlog.starts import parse_start as start_of
from dlog.starts import parse_time_ms
from ledger.log_events import now_ms
from ledger.options import usage
from ledger.values import duration_s, size_bytes

if TYPE_CHECKING:
    from dlog.position import Start
    from dlog.recordbatch import Codec


def parse_start(text: str, option: str = "--start") -> "Start":
    """Return the position that *text* names."""
    return usage(lambda: start_of(text, option, now_ms), option)


def parse_time(text: str, option: str) -> int:
    """Return *text* as milliseconds since 1970."""
    return usage(lambda: parse_time_ms(text, option, now_ms), option)


def parse_duration(text: str, option: str) -> float:
    """Return *text* as seconds."""
    return usage(lambda: duration_s(text, option), option)


def parse_size(text: str, option: str) -> int:
    """Return *text* as bytes."""
    return usage(lambda: size_bytes(text, option), option)


def parse_headers(pairs: list[str], option: str = "--header") -> list[tuple[str, bytes | None]]:
    """Return *pairs* as headers of a record: ``name=value``, or ``name`` alone for a null value."""
    from dlog.headers import encode_headers

    headers: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        headers.append((name, os.fsencode(text) if equals else None))
    try:
        encode_headers(headers)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    return headers


def parse_codec(text: str, option: str) -> "tuple[Codec, int]":
    """Return the codec that *text* names, and its level; see `dlog.settings.parse_codec`."""
    from dlog.errors import InvalidSettings
    from dlog.settings import parse_codec as parse

    try:
        return parse(text)
    except InvalidSettings as error:
        raise typer.BadParameter(f"{text!r}: {error.reason}", param_hint=option) from error


def parse_settings(pairs: list[str], option: str) -> dict[str, object]:
    """Return what *pairs* as ``name=value`` say, for `dlog.settings.parse_settings`.

    It says itself which names and values there are."""
    found: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint=option)
        if name in found:
            raise typer.BadParameter(f"{name} is given twice", param_hint=option)
        found[name] = text
    key = found.get("encrypt_with")
    if key and not is_key_name(str(key)):  # at once: what is refused later was written down before
        raise typer.BadParameter(
            f"encrypt_with: the name of a key is {NAME_ALLOWED}", param_hint=option
        )
    return found
