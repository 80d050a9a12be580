"""An application that shows the metrics of its logs, and does what it is told line by line.

    python -m tests.deploy.application URI

`append LOG COUNT` and `read LOG COUNT`; what a line meets is written to stderr.
"""

import asyncio
import sys

from prometheus_client import start_http_server

import dlog.metrics
from dlog.aio import Log
from ledger.errors import LogError


async def main(uri: str) -> None:
    dlog.metrics.register()
    server, _ = start_http_server(0, "127.0.0.1")
    print(f"metrics are at http://127.0.0.1:{server.server_port}/metrics", file=sys.stderr)
    logs, readers = {}, {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, name, count = line.split()
        try:
            for _ in range(int(count)):
                if verb == "append":
                    if name not in logs:
                        logs[name] = await Log.open(name, uri=uri)
                    await logs[name].append(b"a record")
                else:
                    if name not in readers:
                        readers[name] = await Log.tail(name, uri=uri)
                    await anext(readers[name])
        except LogError as error:
            print(f"{line.strip()}: {error!r}", file=sys.stderr, flush=True)
        else:
            print(f"{line.strip()}: done", file=sys.stderr, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
