"""The last txid that a seal, an open or a writer returns is that of the last record that has one.

One that is too low lets an application append again what is in the log, one that is too high
lets it leave out what is not: exactly-once rests on it.
"""

from dlog.position import NO_TXID
from dlog.recordbatch import decode_batch
from ledger.entry import parse_header, payload_of
from ledger.ids import LedgerId
from tests.simulation.logs.oracle import LogHistory

_NAME = "last_txids_are_exact"


def broken(history: LogHistory) -> str | None:
    for opened in history.new(f"{_NAME} opens", history.opens):
        expected = _last_txid_below(history, opened.epoch)
        if (NO_TXID if opened.last_txid is None else opened.last_txid) != expected:
            return f"{opened.who} opened with last txid {opened.last_txid}, it is {expected}"
    for _, manifest in history.new(_NAME, history.manifests):
        for segment in manifest.segments:
            key = f"{_NAME} {segment.number}"
            if segment.sealed is None or history.checked.get(key):
                continue
            history.checked[key] = 1
            expected = _last_txid_below(history, segment.number + 1)
            if segment.sealed.last_txid != expected:
                kept = segment.sealed.last_txid
                return f"segment {segment.number} is sealed with txid {kept}, it is {expected}"
    return _told_wrongly(history)


def _told_wrongly(history: LogHistory) -> str | None:
    for told in history.new(f"{_NAME} told", history.told_txids):
        opened = next(each for each in reversed(history.opens) if each.epoch == told.epoch)
        txids = [opened.last_txid] + [
            append.txid
            for append in history.acknowledged[: told.acknowledged]
            if append.epoch == told.epoch
        ]
        expected = max((txid for txid in txids if txid is not None), default=None)
        if told.txid != expected:
            return f"{told.who} returns last txid {told.txid}, it is {expected}"
    return None


def _last_txid_below(history: LogHistory, number: int) -> int:
    """Return the last txid in the segments below *number*, all of whose ledgers are CLOSED."""
    return max(
        (
            _last_txid(history, ledger_id)
            for segment, ledger_id in history.segments.items()
            if segment < number
        ),
        default=NO_TXID,
    )


def _last_txid(history: LogHistory, ledger_id: LedgerId) -> int:
    key = f"{_NAME} of ledger {ledger_id}"
    if key not in history.checked:
        ledger = history.ledgers.ledgers[ledger_id]
        last = ledger.recorded.last_entry
        assert last is not None, f"ledger {ledger_id} is not CLOSED"
        txids = [
            txid
            for frame in ledger.sent[: last + 1]
            for txid in decode_batch(payload_of(frame, parse_header(frame))).txid_list() or ()
            if txid is not None
        ]
        history.checked[key] = max(txids, default=NO_TXID)
    return history.checked[key]
