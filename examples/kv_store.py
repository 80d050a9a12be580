"""A replicated key-value store with failover, in two minutes of reading.

Every process holds the whole store in memory. One leads and takes changes; all apply them in
the order of the log. When the leader dies, another one has everything already, and leads.

    dlog up                                          # a cluster, in another terminal
    python -m examples.kv_store --name a --port 7001
    python -m examples.kv_store --name b --port 7002 # follows; kill a, and b leads
    nc 127.0.0.1 7001

Requests are lines: ``get KEY``, ``set KEY VALUE ID``, ``add KEY NUMBER ID``. Answers:
``ok VALUE``, ``none``, ``elsewhere`` (ask another process), ``retry`` (ask again, whoever leads
then; it may have been done), ``bad``. ID is a number that grows with each change; a change that
was done already is not done again, so a client that got no answer asks again with the same ID.
(One numbering for all clients keeps the example short; with many, each has a name of its own.)
"""

import argparse
import asyncio
import json
import sys
from contextlib import suppress
from typing import BinaryIO

from dlog import Command, LogError, NotLeader, RequestForgotten, StateMachine
from dlog.aio import Replica


class Store(StateMachine):
    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def apply(self, command: Command) -> str | None:
        kind, key, value = command.payload.decode().split()
        if kind == "add":
            try:
                value = str(int(self.values.get(key, "0")) + int(value))
            except ValueError:
                return None  # a result, not an error, which would stop every replica
        self.values[key] = value
        return value

    def snapshot(self, out: BinaryIO) -> None:
        out.write(json.dumps(self.values).encode())

    def restore(self, source: BinaryIO) -> None:
        self.values = json.load(source)


async def answer(request: str, replica: Replica[Store]) -> str:
    try:
        match request.split():
            case ["get", key]:
                value = await replica.read(lambda store: store.values.get(key))
                return "none" if value is None else f"ok {value}"
            case ["set" | "add" as kind, key, value, change_id]:
                change = f"{kind} {key} {value}".encode()
                result = await replica.submit(change, request_id=("client", int(change_id)))
                return "bad" if result is None else f"ok {result}"
            case _:
                return "bad"
    except NotLeader:
        return "elsewhere"
    except (ValueError, RequestForgotten):
        return "bad"
    except LogError as error:
        print(error, file=sys.stderr)
        return "retry"


async def serve(name: str, log: str, uri: str | None, port: int, snapshots: str | None) -> None:
    async with Replica.open(log, Store(), uri=uri, candidate=name, snapshots=snapshots) as replica:

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                while line := await reader.readline():
                    writer.write(f"{await answer(line.decode(), replica)}\n".encode())
            writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", port)
        port = server.sockets[0].getsockname()[1]
        print(f"{name} follows, on port {port}", flush=True)
        while True:  # Ctrl-C ends it, and hands leadership over
            await replica.wait_role("leader")
            print(f"{name} leads, epoch {replica.epoch}", flush=True)
            await replica.wait_role("standby")
            print(f"{name} follows again", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="of this process, for people")
    parser.add_argument("--log", default="kv-store")
    parser.add_argument("--uri", help="of the namespace; default: DLOG_URI, else the local one")
    parser.add_argument("--port", type=int, default=0, help="default: any free one")
    parser.add_argument("--snapshots", help="a directory, which the processes may share")
    given = parser.parse_args()
    try:
        asyncio.run(serve(given.name, given.log, given.uri, given.port, given.snapshots))
    except KeyboardInterrupt:
        return 130
    except LogError as error:
        print(f"{given.name}: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
