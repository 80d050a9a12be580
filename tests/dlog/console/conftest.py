"""Pages that tests ask for have as long as a busy machine needs."""

import pytest

from tests.waiting import PATIENCE_S

BOUNDS = (
    "change_pages.READ_S",
    "changing.ASK_S",
    "changing.LOOK_S",
    "gathering.ANSWER_S",
    "gathering.LOOK_S",
    "gathering.REPAIR_S",
    "pages.FIRST_LOOK_S",
    "reading.READ_S",
)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in BOUNDS:
        monkeypatch.setattr(f"dlog.console.{bound}", PATIENCE_S)
