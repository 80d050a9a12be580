"""Pages that tests ask for have as long as a busy machine needs."""

import pytest

from tests.waiting import PATIENCE_S

BOUNDS = (
    "change_pages.READ_S",
    "changes.ASK_S",
    "changes.LOOK_S",
    "poller.ANSWER_S",
    "poller.LOOK_S",
    "poller.REPAIR_S",
    "pages.FIRST_LOOK_S",
    "event_stream.READ_S",
)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in BOUNDS:
        monkeypatch.setattr(f"dlog.console.{bound}", PATIENCE_S)
