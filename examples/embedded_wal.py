"""A write-ahead log for an application of one process: nothing to run beside it.

Metadata store (SQLite) and one bookie live in this process and in one directory. The
application, here some accounts, appends each change to the log before it makes it; after a
crash it reads the log and has every change it ever confirmed.

    printf 'deposit alice 10\\ntransfer alice bob 3\\n' | python -m examples.embedded_wal ./bank
    python -m examples.embedded_wal ./bank            # it remembers; type more, Ctrl-C ends it

Commands: ``deposit NAME AMOUNT``, ``transfer FROM TO AMOUNT``, ``show``. One copy on one disk is
as safe as that disk; the same program on a real cluster only needs another URI.
"""

import argparse
import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

from bookie.config import BookieConfig
from bookie.process import run_bookie
from dlog import Log, LogError, LogSettings
from dlog.config import metadata_uri
from ledger.cluster import make_namespace
from ledger.metastore import open_store
from ledger.quorum import Quorum

ONE_COPY = LogSettings(quorum=Quorum(ensemble=1, write=1, ack=1))


@contextmanager
def embedded(directory: Path) -> Iterator[str]:
    """Run a bookie on a thread of this process; yield the URI of its namespace."""
    uri = metadata_uri(directory)
    config = BookieConfig(uri=uri, directory=directory.absolute() / "bookie", bookie="embedded")
    ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        store = await open_store(uri)
        try:
            await make_namespace(store)  # or finds it, from the second start on
        finally:
            await store.close()
        bookie = asyncio.ensure_future(
            run_bookie(config, on_ready=lambda _name, _address: ready.set_result((loop, bookie)))
        )
        with suppress(asyncio.CancelledError):
            await bookie

    def serve() -> None:
        try:
            asyncio.run(run())
        except LogError as error:  # an open log raises errors of its own
            print(f"bookie: {error}", file=sys.stderr)
            if not ready.done():
                ready.set_exception(error)

    thread = threading.Thread(target=serve, name="embedded-bookie")
    thread.start()
    try:
        loop, bookie = ready.result()
        try:
            yield uri
        finally:
            loop.call_soon_threadsafe(bookie.cancel)
    finally:
        thread.join()


class Bank:
    def __init__(self) -> None:
        self.accounts: dict[str, int] = {}

    def check(self, command: str) -> None:
        """Raise ValueError unless *command* can be done now. Only then it is logged."""
        match command.split():
            case ["deposit", _, amount] if int(amount) > 0:
                return
            case ["transfer", source, _, amount] if 0 < int(amount) <= self.accounts.get(source, 0):
                return
        raise ValueError(f"refused: {command.strip()}")

    def do(self, command: str) -> None:
        """Make a change that is in the log; it must always give the same result."""
        kind, *names, amount = command.split()
        if kind == "transfer":
            self.accounts[names[0]] -= int(amount)
        self.accounts[names[-1]] = self.accounts.get(names[-1], 0) + int(amount)


def run(directory: Path) -> None:
    bank = Bank()
    with embedded(directory) as uri, Log.open("bank", uri=uri, settings=ONE_COPY) as log:
        with Log.tail("bank", uri=uri, follow=False) as reader:  # recover
            for record in reader:
                bank.do(record.value.decode())
        print(f"recovered {log.last_offset + 1} changes: {bank.accounts}", flush=True)
        for line in sys.stdin:
            if line.strip() == "show":
                print(bank.accounts, flush=True)
                continue
            try:
                bank.check(line)
            except ValueError as error:
                print(error, flush=True)
                continue
            where = log.append(line.strip().encode())  # on disk when this returns
            bank.do(line)
            print(f"done {where.offset}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="where everything lies; made if need be")
    given = parser.parse_args()
    try:
        run(given.directory)
    except KeyboardInterrupt:
        return 130
    except LogError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
