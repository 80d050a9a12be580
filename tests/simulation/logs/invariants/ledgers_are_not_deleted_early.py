"""A ledger is deleted only when no manifest has its segment on bookies, and none ever can again."""

from tests.simulation.logs.oracle import LogHistory, Stamp

_NAME = "ledgers_are_not_deleted_early"


def broken(history: LogHistory) -> str | None:
    manifest = history.manifest
    for ledger_id in history.new(_NAME, history.deleted_ledgers):
        segment = Stamp.of(history.ledgers.ledgers[ledger_id]).segment
        if ledger_id in manifest.listed_ledgers and not history.gone:
            return f"ledger {ledger_id} was deleted, it is segment {segment}"
    for version, manifest in history.new(f"{_NAME} manifests", history.manifests):
        for ledger_id in manifest.listed_ledgers:
            if history.ledgers.ledgers[ledger_id].deleted:
                return f"version {version} lists ledger {ledger_id}, which was deleted"
    return None
