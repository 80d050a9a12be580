"""Once all is over and somebody swept, each ledger is a segment of a log, and the other way."""

from tests.simulation.logs.oracle import LogOracle, Stamp


def broken(oracle: LogOracle) -> str | None:
    listed = {
        ledger_id
        for history in oracle.current.values()
        for ledger_id in history.manifest.listed_ledgers
    }
    there = {ledger_id for ledger_id, history in oracle.ledgers.ledgers.items() if history.is_there}
    leaked = sorted(there - listed)
    if leaked:
        stories = [f"{each} ({Stamp.of(oracle.ledgers.ledgers[each])})" for each in leaked]
        return f"ledgers {', '.join(stories)} belong to no log"
    missing = sorted(listed - there)
    if missing:
        return f"segments are ledgers {missing}, which are not there"
    return None
