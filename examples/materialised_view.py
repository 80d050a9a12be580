"""A tailer that builds a materialised view: every order counted once, whatever crashes when.

Records are orders, lines like ``alice 12``; the view is a table of totals in an SQLite file.
The view is written together with the position it stands for, in one transaction: so nothing is
counted twice, although the consumer gives again what was not committed before a crash. The
position names the incarnation of the log, so the view of a log that was deleted and re-created is
refused and not continued. The commit under the consumer's name comes after: it shows the lag to
people, and retention can wait for it.

    dlog up                                             # a cluster, in another terminal
    echo alice 12 | dlog log append orders
    python -m examples.materialised_view totals.sqlite  # until Ctrl-C
    sqlite3 totals.sqlite 'select * from totals'

With --once it stops where the log ends now.
"""

import argparse
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from dlog import Log, LogError, LogRecreated, Position, Record

SCHEMA = """
create table if not exists totals (customer text primary key, amount integer not null);
create table if not exists position (one integer primary key check (one = 1), next text not null);
"""


class View:
    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path)
        self._database.executescript(SCHEMA)

    @property
    def position(self) -> Position | None:
        """Every record below it is in the view; None: the view is new."""
        row = self._database.execute("select next from position").fetchone()
        return None if row is None else Position.parse(row[0])

    def take(self, batch: Sequence[Record], position: Position) -> None:
        """Add *batch* and move on to *position*, both or neither; what is in the view already is
        left out."""
        before = self.position or 0
        with self._database:  # one transaction
            for record in batch:
                if record.offset >= before:
                    customer, _, amount = record.value.decode().rpartition(" ")
                    self._database.execute(
                        "insert into totals values (:customer, :amount)"
                        " on conflict do update set amount = amount + :amount",
                        {"customer": customer, "amount": int(amount)},
                    )
            self._database.execute(
                "insert or replace into position values (1, ?)", (str(position),)
            )

    def close(self) -> None:
        self._database.close()


def run(path: Path, log: str, uri: str | None, *, once: bool) -> None:
    with (
        closing(View(path)) as view,
        Log.consumer("totals", log, uri=uri, exclusive=True, wait_s=60, follow=not once) as orders,
    ):
        stored = view.position
        if stored is not None and stored.incarnation != orders.position.incarnation:
            raise LogRecreated(log, stored, orders.position.incarnation or "unknown")
        print(f"begins at offset {int(orders.position)}; the view is at {stored}", flush=True)
        while batch := orders.read_batch():
            view.take(batch, orders.position)
            orders.commit()
            print(f"viewed up to offset {int(orders.position)}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("database", type=Path, help="the SQLite file of the view")
    parser.add_argument("--log", default="orders")
    parser.add_argument("--uri", help="of the namespace; default: DLOG_URI, else the local one")
    parser.add_argument("--once", action="store_true", help="stop where the log ends now")
    given = parser.parse_args()
    try:
        run(given.database, given.log, given.uri, once=given.once)
    except KeyboardInterrupt:
        return 130
    except LogError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
