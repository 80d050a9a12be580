"""Giving up what an embedded store has lost, at an operator's word and never by itself.

What is there must be whole in itself: some commit, every row as it was then. It becomes the newest
commit, with a number that no commit had, so that whatever was newer is refused from then on.
"""

import os
import shutil
import tempfile
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from ledger.errors import CallerError
from ledger.metastore.sqlite_checksums import next_chain
from ledger.metastore.sqlite_files import DATABASE, Database
from ledger.metastore.sqlite_format import reporting_damage, whole_state
from ledger.metastore.sqlite_witness import WITNESS, Mark, Witness


class NothingLost(CallerError):
    def __init__(self, directory: Path) -> None:
        super().__init__(f"the metadata store in {directory} is whole: there is nothing to give up")


class Loss(NamedTuple):
    """What an embedded store lost."""

    generation: int
    """Of the newest commit that is there."""
    witnessed: int | None
    """Of the newest one that there was; None: the witness is gone or damaged too."""
    copy: Path | None
    """Where the files are as they were found; None: nothing was changed."""


def accept_loss(directory: Path, *, really: bool, timeout_s: float) -> Loss:
    """Take the newest commit that is there for the newest there was, if *really*; return what
    is lost by that.

    Requires that nothing uses the store. Raises `NothingLost`; `DamagedMetadata` if what is
    there is not whole in itself; `NamespaceMismatch`, `OSError`, `sqlite3.Error`."""
    database = Database(directory)
    where = str(database.path)
    with (
        closing(Witness(directory / WITNESS)) as witness,
        reporting_damage(where),
        witness.locked(timeout_s),
    ):
        database.check_unused("by another process")
        with closing(database.connection("ro", timeout_s)) as connection:
            state, mark = whole_state(connection, where), witness.read()
        if mark is not None and state.follows(mark):
            raise NothingLost(directory)
        loss = Loss(state.generation, None if mark is None else mark.generation, None)
        if not really:
            return loss
        copy = Path(tempfile.mkdtemp(prefix="before-loss-", dir=directory))
        for name in (DATABASE, f"{DATABASE}-wal", WITNESS):
            if (directory / name).exists():
                shutil.copy2(directory / name, copy)
        os.sync()
        generation = max(loss.generation, loss.witnessed or 0) + 1
        chain = next_chain(state.chain, generation, state.total)
        with closing(database.connection("rw", timeout_s)) as connection:
            connection.execute(
                "UPDATE state SET generation = ?, before = ?, chain = ?",
                (generation, state.chain, chain),
            )
        witness.begin(Mark(generation, chain))
        return loss._replace(copy=copy)
