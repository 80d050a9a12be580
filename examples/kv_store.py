"""A replicated key-value store with failover, in a minute of reading.

    dlog up                                          # a cluster, in another terminal
    python -m examples.kv_store --name a --port 7001
    python -m examples.kv_store --name b --port 7002 # follows; kill a, and b leads
    nc 127.0.0.1 7001

Requests: ``get KEY``, ``set KEY VALUE ID``, ``add KEY NUMBER ID``. Answers: ``ok VALUE``, ``none``,
``bad``, ``elsewhere`` (ask another process), ``retry`` (it may have been done). ID grows with each
change: a client without an answer repeats the request with the same ID, and it has one effect.
"""

import argparse
import asyncio
import sys
from contextlib import suppress

from dlog import Command, LogError, NotLeader, RequestForgotten, StateMachine
from dlog.aio import Replica


class Store(StateMachine):
    """The same in every process. For snapshots it would define `snapshot` and `restore`."""

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
    except LogError:
        return "retry"


async def serve(name: str, port: int) -> None:
    async with Replica.open("kv-store", Store(), candidate=name) as replica:

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                while line := await reader.readline():
                    writer.write(f"{await answer(line.decode(), replica)}\n".encode())
            writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", port)
        print(f"{name} follows, on port {server.sockets[0].getsockname()[1]}", flush=True)
        while await replica.wait_role("leader"):  # until Ctrl-C, which hands leadership over
            print(f"{name} leads, epoch {replica.epoch}", flush=True)
            await replica.wait_role("standby")
            print(f"{name} follows again", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="of this process, for people")
    parser.add_argument("--port", type=int, default=0, help="default: any free one")
    arguments = parser.parse_args()
    try:
        asyncio.run(serve(arguments.name, arguments.port))
    except KeyboardInterrupt:
        sys.exit(130)
