"""Records as people look at them: text, a tree of JSON, or bytes. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dlog.console.wording import UNKNOWN, brief, dump, is_text, moment, plain, size
from dlog.log_schema.records import DecodedRecord
from dlog.position import Record

NODES_MAX: Final = 300
"""Values of one tree."""
DEPTH_MAX: Final = 12
JSON_BYTES_MAX: Final = 64 * 1024
"""A longer value is shown as text."""
WHOLE_MAX: Final = 64 * 1024
"""Characters, or bytes, of a record on a page of its own."""


class Form(StrEnum):
    TEXT = "text"
    """What is no text is shown as bytes."""
    JSON = "json"
    HEX = "hex"
    SCHEMA = "schema"
    """The row that the schema of the log makes of it."""


def form_of(text: str) -> Form:
    return Form(text) if text in list(Form) else Form.TEXT


@dataclass(frozen=True, slots=True)
class Node:
    """One value of JSON."""

    name: str
    text: str
    """Of a plain value; of others what they are, and how large."""
    children: "Sequence[Node]" = ()


@dataclass(frozen=True, slots=True)
class RecordRow:
    offset: int
    time: str
    txid: str
    dlsn: str
    key: str
    size: str
    headers: Sequence[tuple[str, str]]
    text: str
    """Empty if there is a tree."""
    tree: Node | None


def record_row(
    record: Record, form: Form, *, whole: bool = False, decoded: DecodedRecord | None = None
) -> RecordRow:
    """Return how *record* is shown; *decoded*: its rows, for `Form.SCHEMA`."""
    at_most = WHOLE_MAX if whole else 2_000
    tree = json_tree(record.value) if form is Form.JSON else None
    if decoded is not None and not decoded.problem:
        tree = _Cutter().node("", decoded.json, 0)
    if tree is not None:
        text = ""
    elif form is Form.HEX or not is_text(record.value):
        text = dump(record.value, at_most if whole else 256)
    else:
        text = plain(record.value, at_most)
    return RecordRow(
        record.offset,
        moment(record.timestamp_ms),
        UNKNOWN if record.txid is None else str(record.txid),
        str(record.dlsn),
        UNKNOWN if record.key is None else brief(record.key, 200),
        size(len(record.value)),
        [
            (plain(name.encode(), 100), "null" if value is None else brief(value, 500))
            for name, value in record.headers.pairs()
        ],
        text,
        tree,
    )


def json_tree(value: bytes) -> Node | None:
    """Return the tree of *value*, cut where it is too large; None if it is no JSON."""
    if len(value) > JSON_BYTES_MAX:
        return None
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return _Cutter().node("", parsed, 0)


class _Cutter:
    def __init__(self) -> None:
        self._left = NODES_MAX

    def node(self, name: str, value: object, depth: int) -> Node:
        self._left -= 1
        if isinstance(value, Mapping):
            pairs = [(str(key), each) for key, each in value.items()]
            return Node(name, f"{{{len(pairs)}}}", self._children(pairs, depth))
        if isinstance(value, list):
            items = [(str(at), each) for at, each in enumerate(value)]
            return Node(name, f"[{len(items)}]", self._children(items, depth))
        return Node(name, plain(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")))

    def _children(self, pairs: Sequence[tuple[str, object]], depth: int) -> Sequence[Node]:
        if depth >= DEPTH_MAX:
            return (Node("…", "deeper than is shown"),) if pairs else ()
        found = []
        for at, (name, value) in enumerate(pairs):
            if self._left <= 0:
                found.append(Node("…", f"{len(pairs) - at} more"))
                break
            found.append(self.node(plain(name.encode("utf-8", "replace"), 200), value, depth + 1))
        return found


def matches(record: Record, wanted: bytes) -> bool:
    """Return whether *wanted* is in the record's key, or in its value."""
    return wanted in record.value or (record.key is not None and wanted in record.key)
