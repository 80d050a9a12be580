"""A barrier is not below anything that was acknowledged to anybody when it was asked for.

That everything below it is committed is seen by its reader, which must come to it in the end.
"""

from tests.simulation.logs.oracle import LogHistory


def broken(history: LogHistory) -> str | None:
    for barrier in history.new("barriers_cover_acknowledgements", history.barriers):
        if barrier.end < barrier.acknowledged:
            return (
                f"{barrier.who} learned that the log ends at {barrier.end}, although records up "
                f"to {barrier.acknowledged} had been acknowledged before"
            )
    return None
