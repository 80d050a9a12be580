"""The options of a process of repair, once: `dlog autorecovery start` and the child of a bookie."""

from typing import Annotated, Final

import typer

from ledger.options import duration, mebibytes

MIB: Final = 1024 * 1024
RATE: Final = 12.0
"""MiB copied a second unless asked otherwise: with it, and the processor yielded, the 99th
percentile of appends stays below twice what it is without repair, where two cores run all of it
(`make bench-repair ONLY=beside`)."""

DelayS = Annotated[
    float,
    typer.Option(
        "--delay-s",
        help="How long a bookie may be away before its copies are made elsewhere.",
        parser=duration(),
        metavar="DURATION",
    ),
]
GraceS = Annotated[
    float,
    typer.Option(
        "--grace-s",
        help="How long after its mark a ledger that is written is left to its writer, who "
        "normally leaves a lost bookie by itself.",
        parser=duration(),
        metavar="DURATION",
    ),
]
Rate = Annotated[
    float,
    typer.Option(
        "--rate",
        help="MiB (or 100M, 1G) copied a second by this process; 0: no limit.",
        parser=mebibytes,
        metavar="SIZE",
    ),
]
Ledgers = Annotated[
    int, typer.Option("--ledgers", help="How many ledgers are repaired at a time.", min=1, max=64)
]
