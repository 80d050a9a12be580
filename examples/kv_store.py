"""A replicated key-value store with failover, in a minute of reading.

    dlog up                          # a cluster, in another terminal
    python -m examples.kv_store 7001
    python -m examples.kv_store 7002 # follows; kill the first, and this one leads
    nc 127.0.0.1 7002

Each process takes each request: ``get KEY``, ``set KEY VALUE ID``, ``add KEY NUMBER ID``. Answers:
``ok VALUE``, ``none`` (no such key, or no number to add to), ``bad``, ``retry`` (it may have been
done). ID grows with each change: a client without an answer repeats the request with the same ID,
and it has one effect.
"""

import asyncio
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from contextlib import suppress

from dlog import Command, InvalidValue, LogError, RequestForgotten, StateMachine
from dlog.aio import Replica


class Store(StateMachine):
    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def apply(self, command: Command) -> str | None:  # the same in every process
        kind, key, value, _ = command.payload.decode().split()
        if kind == "add":
            try:
                value = str(int(self.values.get(key, "0")) + int(value))
            except ValueError:
                return None  # a result, not an error, which would stop every replica
        self.values[key] = value
        return value


async def answer(request: str, replica: Replica[Store]) -> str:
    match request.split():
        case ["set" | "add", _, _, number] if number.isdecimal():
            change, request_id = request.encode(), ("client", int(number))
            value = await replica.submit(change, request_id=request_id, forward=True)
        case ["get", key]:
            value = await replica.read(lambda store: store.values.get(key))
        case _:
            return "bad"
    return "none" if value is None else f"ok {value}"


async def serve(port: int) -> None:
    async with Replica.open("kv-store", Store(), candidate=str(port)) as replica:

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async for line in reader:
                try:
                    answered = await answer(line.decode(errors="replace"), replica)
                except LogError as error:
                    is_final = isinstance(error, InvalidValue | RequestForgotten)
                    answered = "bad" if is_final else "retry"
                writer.write(f"{answered}\n".encode())
            writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", port)
        async for role in replica.roles():
            print(role, "on port", server.sockets[0].getsockname()[1], flush=True)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int, help="for clients; 0: any free one")
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(parser.parse_args().port))
