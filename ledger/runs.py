"""Puts the frames of a ledger into runs, none of them larger than a message may be."""

from collections.abc import Iterator, Mapping, Sequence

from ledger.environment import Credentials
from ledger.requests import AddRun


def runs_of(
    ids: Sequence[int],
    frames: Mapping[int, bytes],
    credentials: Credentials,
    *,
    bytes_max: int,
    recovery: bool = False,
) -> list[AddRun]:
    """Return *ids* in runs, each cut behind the entry with which it reaches *bytes_max*."""
    runs, start, size = list[AddRun](), 0, 0
    for number, entry_id in enumerate(ids, 1):
        size += len(frames[entry_id])
        if size >= bytes_max or number == len(ids):
            runs.append(_run(ids[start:number], frames, credentials, recovery=recovery))
            start, size = number, 0
    return runs


def with_ranges(runs: Sequence[AddRun], first: int, last: int) -> Iterator[tuple[AddRun, int, int]]:
    """Yield each of *runs*, which are all that one bookie holds of first..last, with the part of
    it that its answer is about: ids between a run's own are of other bookies."""
    for number, run in enumerate(runs, 1):
        upto = last if number == len(runs) else run.entries[-1]
        yield run, first, upto
        first = upto + 1


def _run(
    ids: Sequence[int], frames: Mapping[int, bytes], credentials: Credentials, *, recovery: bool
) -> AddRun:
    together = [frames[entry_id] for entry_id in ids]
    return AddRun(
        ledger_id=credentials.ledger_id,
        key=credentials.key,
        entries=ids,
        lengths=[len(frame) for frame in together],
        frames=together[0] if len(together) == 1 else b"".join(together),
        recovery=recovery,
    )
