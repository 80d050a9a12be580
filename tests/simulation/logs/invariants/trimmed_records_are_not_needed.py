"""Nothing is trimmed that nobody gave up: by a truncation, by retention, or with the log.

And what is not trimmed is there: the first segment begins at the trim point or before.
"""

from dlog.manifest import Manifest
from tests.simulation.logs.oracle import LogHistory
from tests.simulation.logs.retention import asked_for

_NAME = "trimmed_records_are_not_needed"


def broken(history: LogHistory) -> str | None:
    first = history.checked.get(_NAME, 0)
    for index, (version, manifest) in enumerate(history.new(_NAME, history.manifests), first):
        if manifest.dropped:
            continue
        settings = manifest.settings
        kept = settings.retention_age_s == 0.0 and settings.retention_bytes == 0
        if kept and _trimmed_beyond(history, index):
            return (
                f"version {version} is trimmed to {manifest.trim_offset}, "
                f"nobody asked for more than {history.truncated}, or {history.keeps}"
            )
        story = _hole(manifest)
        if story is not None:
            return f"version {version}: {story}"
    return None


def _trimmed_beyond(history: LogHistory, index: int) -> bool:
    _, manifest = history.manifests[index]
    before = history.manifests[index - 1][1] if index else manifest
    trim = manifest.trim_offset
    if trim <= max(history.truncated, before.trim_offset if index else 0):
        return False
    return not asked_for(history, before, trim, now_ms=history.written_ms[index])


def _hole(manifest: Manifest) -> str | None:
    if not manifest.segments:
        return None if manifest.trim_offset == 0 else "the log's last segment is gone"
    first = manifest.segments[0].first_offset
    assert first is not None
    if first > manifest.trim_offset:
        return f"trimmed to {manifest.trim_offset}, the first segment begins at {first}"
    return None
