"""What architecture.md says of the places where an append waits, and of who copies it, is so."""

import re
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

ROOT = Path(__file__).parents[2]
UNITS: Final = {"KiB": 1024, "MiB": 1024 * 1024}


def rows(header: str) -> list[list[str]]:
    """Return the cells of the table in architecture.md whose header begins with *header*."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text[text.index(f"| {header} |") :].partition("\n\n")[0]
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]
    ]


LIMITS = [row[1:3] for row in rows("it waits")]
COPIES = [row[1] for row in rows("the payload's bytes are copied")]
READ_COPIES = [row[1] for row in rows("the bytes of a read are copied")]


def named(where: str) -> Any:
    """Return what *where* names: a file and something in it."""
    match = re.fullmatch(r"`([a-z_/]+)\.py` `(\w+)(?:\.(\w+))?`", where)
    assert match, where
    found = getattr(import_module(match[1].replace("/", ".")), match[2])
    if match[3] is None:
        return found
    if not is_dataclass(found):
        return getattr(found, match[3])
    default = {field.name: field.default for field in fields(found)}[match[3]]
    assert default is not MISSING
    return default


@pytest.mark.parametrize(("bound", "where"), LIMITS, ids=[where for _, where in LIMITS])
def test_each_bound_is_what_the_code_says(bound: str, where: str) -> None:
    number, unit = bound.replace(",", "").split(" ", 1)
    assert named(where) == int(number) * UNITS.get(unit, 1)


@pytest.mark.parametrize("where", COPIES + READ_COPIES)
def test_who_copies_is_there(where: str) -> None:
    assert callable(named(where))


def test_all_tables_were_found() -> None:
    assert len(LIMITS) > 20
    assert len(COPIES) > 8
    assert len(READ_COPIES) > 6
