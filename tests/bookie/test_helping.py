"""The process of repair beside a bookie."""

import asyncio
import sys
from pathlib import Path

import pytest

from bookie.helping import keep_autorecovery
from tests.waiting import until


async def test_a_process_of_repair_that_cannot_be_started_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    log_path = tmp_path / "missing" / "autorecovery.log"
    keeping = asyncio.ensure_future(keep_autorecovery("memory://x", log_path=log_path))
    await until(lambda: "autorecovery_ended" in caplog.text, "it was reported")
    assert not keeping.done()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
