"""Settings change only as somebody asked, of this very log; what was not named stays."""

from itertools import pairwise

from tests.simulation.logs.oracle import LogHistory

_NAME = "settings_change_as_asked"


def broken(history: LogHistory) -> str | None:
    first = max(1, history.checked.get(_NAME, 1))
    history.checked[_NAME] = len(history.manifests)
    for (_, before), (version, after) in pairwise(history.manifests[first - 1 :]):
        same = before.settings == after.settings
        asked = history.requests.changes(history.incarnation, before.settings, after.settings)
        if not same and not asked:
            return f"version {version} has {after.settings} after {before.settings}"
    return None
