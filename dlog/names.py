"""Names of logs: what is allowed, and the one node of the metadata store that each maps to.

A name may hold slashes for the eye and for prefixes; the store sees one component, so that a
log never is the parent of another.
"""

import unicodedata
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, unquote

from dlog.errors import InvalidName
from ledger.security.access import OWN_LOGS

NAME_BYTES_MAX: Final = 255
LOGS_PATH: Final = "/logs"

_CONTROL_CATEGORIES: Final = ("Cc", "Cf", "Zl", "Zp")


def check_name(name: str) -> str:
    """Return *name* unchanged. Raises `InvalidName`."""
    if not isinstance(name, str):
        raise InvalidName(name, "it is not a string")
    if not name:
        raise InvalidName(name, "it is empty")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(name, "it cannot be written as UTF-8") from None
    if size > NAME_BYTES_MAX:
        raise InvalidName(name, f"it has {size} bytes of UTF-8, {NAME_BYTES_MAX} are allowed")
    if any(unicodedata.category(character) in _CONTROL_CATEGORIES for character in name):
        raise InvalidName(name, "it holds control characters")
    if name.startswith("/") or name.endswith("/"):
        raise InvalidName(name, "it begins or ends with a slash")
    for part in name.split("/"):
        if not part:
            raise InvalidName(name, "it has an empty part")
        if part.startswith("."):
            raise InvalidName(name, f"its part {part!r} begins with a dot")
    return name


def is_own(name: str) -> bool:
    """Return whether *name* is, or begins, one of a log that dlog writes itself."""
    return name.startswith(OWN_LOGS)


def first_level(names: Iterable[str], prefix: str) -> list[str]:
    """Return *names*, which begin with *prefix*, cut behind the first slash after it, each once."""
    cut = (name[len(prefix) :].partition("/") for name in names)
    return list(dict.fromkeys(prefix + head + slash for head, slash, _ in cut))


def check_new_name(name: str) -> str:
    """Return *name* unchanged if a program may make a log with it. Raises `InvalidName`."""
    if is_own(check_name(name)):
        raise InvalidName(name, "names that begin with an underscore are for dlog's own logs")
    return name


def node_of(name: str) -> str:
    """Return the node's name of the log *name*, one path component. Raises `InvalidName`."""
    return quote(check_name(name), safe="")


def name_of(node: str) -> str:
    """Return the log's name that `node_of` turned into *node*."""
    return unquote(node)


def path_of(name: str) -> str:
    """Return the path of the manifest of the log *name*. Raises `InvalidName`."""
    return f"{LOGS_PATH}/{node_of(name)}"
