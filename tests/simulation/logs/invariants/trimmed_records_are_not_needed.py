"""Nothing is trimmed that nobody gave up: by a truncation, by retention, or with the log.

And what is not trimmed is there: the first segment begins at the trim point or before.
"""

from dlog.manifest import Manifest
from tests.simulation.logs.oracle import LogHistory

_NAME = "trimmed_records_are_not_needed"


def broken(history: LogHistory) -> str | None:
    for version, manifest in history.new(_NAME, history.manifests):
        if manifest.dropped:
            continue
        settings = manifest.settings
        kept = settings.retention_age_s == 0.0 and settings.retention_bytes == 0
        if kept and manifest.trim_offset > history.truncated:
            return (
                f"version {version} is trimmed to {manifest.trim_offset}, "
                f"nobody asked for more than {history.truncated}"
            )
        story = _hole(manifest)
        if story is not None:
            return f"version {version}: {story}"
    return None


def _hole(manifest: Manifest) -> str | None:
    if not manifest.segments:
        return None if manifest.trim_offset == 0 else "the log's last segment is gone"
    first = manifest.segments[0].first_offset
    assert first is not None
    if first > manifest.trim_offset:
        return f"trimmed to {manifest.trim_offset}, the first segment begins at {first}"
    return None
