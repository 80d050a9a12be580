"""The console of the demo, for whoever wants to watch: it gives way to the rest.

Call: python -m dlog.demo.console URI
"""

import asyncio
import os
import sys

from dlog.cli.connections import connected
from dlog.demo.roles import Role


async def run(role: Role, uri: str) -> None:
    from dlog.console.http_server import ConsoleOptions, console

    async with connected(uri) as client, console(client, ConsoleOptions()) as found:
        role.say("serving", address=found.address, login=found.login)
        await asyncio.Event().wait()


if __name__ == "__main__":
    os.nice(10)
    asyncio.run(run(Role(), sys.argv[1]))
