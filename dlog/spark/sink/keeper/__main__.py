"""`python -m dlog.spark.sink.keeper`: started by a Spark worker, ends with the driver."""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from dlog.aio.namespace_connection import connect
from dlog.config import resolve_uri
from dlog.spark.sink.keeper.held_logs import ClusterOpener, Holding
from dlog.spark.sink.keeper.ownership import Ownership
from dlog.spark.sink.keeper.place import KeeperPlace, Program, remove_leftovers
from dlog.spark.sink.keeper.server import KeeperServer
from ledger.log_events import configure, get_logger
from ledger.metastore.uri import without_secrets
from ledger.process import keep_loaded

LOOK_S: Final = 1.0
"""How often it is looked whether the driver is there, and what is idle."""

_log = get_logger("dlog.spark.sink.keeper")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dlog.spark.sink.keeper")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--driver", type=int, required=True)
    parser.add_argument("--driver-started", required=True)
    given = parser.parse_args()
    configure()
    place = KeeperPlace(given.directory, given.name)
    driver = Program(given.driver, given.driver_started)
    with place.alone(driver) as alone:
        if not alone:
            return 0  # another one was faster; who started this one finds it
        remove_leftovers(place)
        asyncio.run(keep(place, driver))
        if Program.of(driver.pid) != driver:
            place.remove()
    return 0


async def keep(place: KeeperPlace, driver: Program) -> None:
    """Serve the namespace of the environment until the driver has ended, or this process is asked
    to end."""
    opener = ClusterOpener(
        lambda: connect(None), owner=f"Spark driver {os.uname().nodename}:{driver.pid}"
    )
    holding = Holding(
        opener,
        known=read_owners(place.owners),
        save=lambda owners: write_owners(place.owners, owners),
        clock=time.monotonic,
    )
    server = KeeperServer(holding)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await server.listen(place.socket)
    keep_loaded()
    _log.info("keeper_started", uri=without_secrets(resolve_uri()), driver=driver.pid)
    while not stopped.is_set() and Program.of(driver.pid) == driver:
        await holding.close_idle()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await stopped.wait()
    place.socket.unlink(missing_ok=True)
    await server.close()
    await holding.close()
    await opener.close()
    _log.info("keeper_ended", driver=driver.pid)


def read_owners(path: Path) -> dict[str, Ownership]:
    """Return what `write_owners` wrote; nothing, if it did not, or the file is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {log: Ownership.from_facts(facts) for log, facts in found.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError) as error:
        _log.warning("owners_unreadable", error=str(error))
        return {}


def write_owners(path: Path, owners: dict[str, Ownership]) -> None:
    """Write the file whole. It survives a crash of the process, as it must; not of the machine,
    which the driver does not survive either."""
    text = json.dumps({log: ownership.to_facts() for log, ownership in owners.items()})
    fresh = path.with_suffix(".new")
    fresh.touch(mode=0o600)
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


if __name__ == "__main__":
    sys.exit(main())
