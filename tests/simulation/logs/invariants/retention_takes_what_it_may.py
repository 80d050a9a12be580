"""Retention takes whole segments from the front, each of them too old or with enough behind it.

And none that a consumer has not processed, if it has to wait for consumers: those that were
there when the first of the segments that go was sealed. Later ones may have come while somebody
was about to trim.
"""

from dlog.manifest import Manifest
from tests.simulation.logs.oracle import LogHistory
from tests.simulation.logs.retention import asked_for, let_go

_NAME = "retention_takes_what_it_may"


def broken(history: LogHistory) -> str | None:
    settings = history.manifest.settings
    if not (settings.retention_bytes or settings.retention_age_s):
        return None
    first = max(1, history.checked.get(_NAME, 1))
    history.checked[_NAME] = len(history.manifests)
    for index in range(first, len(history.manifests)):
        (_, before), (version, after) = history.manifests[index - 1 : index + 1]
        trim = after.trim_offset
        if after.dropped or trim <= max(before.trim_offset, history.truncated):
            continue
        if asked_for(history, before, trim, now_ms=history.written_ms[index]):
            continue
        ends = let_go(history, before, after, now_ms=history.written_ms[index])
        if trim not in ends:
            return f"version {version} is trimmed to {trim}, retention may take {ends or 'nothing'}"
        if settings.retention_waits_for_consumers:
            story = _not_waited(history, before, index)
            if story is not None:
                return f"version {version} is trimmed to {trim}, and {story}"
    return None


def not_taken(history: LogHistory, *, now_ms: int) -> str | None:
    """Return what retention should have taken at *now_ms*, once nothing moves any more."""
    manifest = history.manifest
    ends = let_go(history, manifest, manifest, now_ms=now_ms)
    if manifest.settings.retention_waits_for_consumers:
        positions = [
            each.states[-1].position for each in history.consumers.values() if not each.gone
        ]
        ends = [end for end in ends if end <= min(positions, default=end)]
    for run in history.objects.runs.get(manifest.storage, ()):  # each goes whole, or stays
        ends = [end for end in ends if not run.first_offset < end < run.end_offset]
    if ends and ends[-1] > manifest.trim_offset:
        return f"{history.name} is trimmed to {manifest.trim_offset}, retention says {ends[-1]}"
    return None


def _not_waited(history: LogHistory, before: Manifest, index: int) -> str | None:
    trim = history.manifests[index][1].trim_offset
    taken = next(
        s for s in before.segments if s.end_offset is None or s.end_offset > before.trim_offset
    )
    sealed = index if taken.sealed is None else index - 1
    while sealed > 0:
        earlier = history.manifests[sealed - 1][1].find(taken.number)
        if earlier is None or earlier.sealed is None:
            break
        sealed -= 1
    for consumer in history.consumers.values():
        position = consumer.states[-1].position
        if consumer.born < sealed and position < trim and not consumer.gone:
            return f"{consumer.name} has processed {position} records"
    return None
