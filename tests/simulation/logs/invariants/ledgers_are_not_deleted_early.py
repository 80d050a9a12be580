"""A ledger is deleted only when no manifest lists it as a segment, and none ever can again."""

from tests.simulation.logs.oracle import LogHistory, Stamp

_NAME = "ledgers_are_not_deleted_early"


def broken(history: LogHistory) -> str | None:
    manifest = history.manifest
    for ledger_id in history.new(_NAME, history.deleted_ledgers):
        segment = Stamp.of(history.ledgers.ledgers[ledger_id]).segment
        if any(each.ledger_id == ledger_id for each in manifest.segments) and not history.gone:
            return f"ledger {ledger_id} was deleted, it is segment {segment}"
    for version, manifest in history.new(f"{_NAME} manifests", history.manifests):
        for each in manifest.segments:
            if history.ledgers.ledgers[each.ledger_id].deleted:
                return f"version {version} lists ledger {each.ledger_id}, which was deleted"
    return None
