"""A replicated key-value store with failover, in two minutes of reading.

Every process holds the whole store in memory. One leads: it appends each change to the log
before it makes it, and answers. The others follow the log, so when the leader dies one of
them has everything already, reads the last records, and serves.

    dlog up                                          # a cluster, in another terminal
    python -m examples.kv_store --name a --port 7001
    python -m examples.kv_store --name b --port 7002 # follows; kill a, and b leads
    nc 127.0.0.1 7001

Requests are lines: ``get KEY``, ``set KEY VALUE ID``, ``add KEY NUMBER ID``. Answers:
``ok VALUE``, ``none``, ``elsewhere`` (ask another process), ``retry`` (ask again, whoever leads
then; it may have been done), ``bad``. ID is a number that grows with each change; a change that
was done already is not done again, so a client that got no answer asks again with the same ID.
(One numbering for all clients keeps the example short; with many, keep the last ID of each.)
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress

from dlog import LogError, Record
from dlog.aio import Log, Standby


class Store:
    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.last_id = -1
        self.log: Log | None = None
        """Set while this process leads."""
        self._turn = asyncio.Lock()

    def apply(self, batch: Sequence[Record]) -> None:
        """Follow: take changes from the log. Also how a new leader gets the last ones."""
        for record in batch:
            self.change((record.key or b"").decode(), record.value.decode(), record.txid or 0)

    def change(self, key: str, value: str, change_id: int) -> None:
        self.values[key] = value
        self.last_id = change_id

    async def answer(self, request: str, standby: Standby) -> str:
        if self.log is None or not standby.is_leader:
            return "elsewhere"
        match request.split():
            case ["get", key]:
                return f"ok {self.values[key]}" if key in self.values else "none"
            case ["set" | "add" as kind, key, value, change_id]:
                async with self._turn:  # an add needs the value that the one before left
                    if int(change_id) > self.last_id:
                        if kind == "add":
                            value = str(int(self.values.get(key, "0")) + int(value))
                        await self.log.append(value.encode(), key=key.encode(), txid=int(change_id))
                        self.change(key, value, int(change_id))  # only now it is certain
                    return f"ok {self.values[key]}"
            case _:
                return "bad"


async def serve(name: str, log: str, uri: str | None, port: int) -> int:
    store = Store()
    async with Standby.open(log, store.apply, uri=uri, candidate=name) as standby:

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                while line := await reader.readline():
                    try:
                        answer = await store.answer(line.decode(), standby)
                    except LogError as error:
                        print(f"{name}: {error}", file=sys.stderr)
                        answer = "retry"
                    except ValueError:
                        answer = "bad"
                    writer.write(f"{answer}\n".encode())
            writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", port)
        port = server.sockets[0].getsockname()[1]
        print(f"{name} follows, on port {port}", flush=True)
        store.log = await standby.promote()
        print(f"{name} leads, epoch {standby.epoch}, from {len(store.values)} keys", flush=True)
        await standby.lost.wait()  # Ctrl-C ends the wait, and hands leadership over
        print(f"{name} leads no more: {standby.lost_reason}; start it again", file=sys.stderr)
        return 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="of this process, for people")
    parser.add_argument("--log", default="kv-store")
    parser.add_argument("--uri", help="of the namespace; default: DLOG_URI, else the local one")
    parser.add_argument("--port", type=int, default=0, help="default: any free one")
    given = parser.parse_args()
    try:
        return asyncio.run(serve(given.name, given.log, given.uri, given.port))
    except KeyboardInterrupt:
        return 130
    except LogError as error:
        print(f"{given.name}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
