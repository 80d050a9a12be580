"""Runs processes of `tests.leader.member` and hears what they say."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from leader.election import leaders_path
from ledger.metastore import open_store
from tests.waiting import PATIENCE_S, SESSION_S, eventually

LOG = "flights"
ROOT = Path(__file__).parents[2]


class Member:
    """A process of `tests.leader.member`."""

    def __init__(self, uri: str, name: str, session_timeout_s: float) -> None:
        command = [sys.executable, "-m", "tests.leader.member", uri, LOG, name]
        self.process = subprocess.Popen(
            [*command, str(session_timeout_s)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        self._said: queue.Queue[dict[str, object]] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def expect(self, event: str, *, timeout_s: float = PATIENCE_S) -> dict[str, object]:
        """Return what it says when *event* happens next."""
        deadline = time.monotonic() + timeout_s
        while (said := self._said.get(timeout=max(0.0, deadline - time.monotonic())))[
            "event"
        ] != event:
            pass
        return said

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(json.loads(line))


async def wait_for_candidates(uri: str, count: int) -> None:
    store = await open_store(uri, session_timeout_s=SESSION_S, timeout_s=PATIENCE_S)

    async def standing() -> bool:
        if await store.exists(leaders_path(LOG)) is None:
            return False
        return len(await store.children(leaders_path(LOG))) == count

    await eventually(standing, f"{count} candidates stand")
    await store.close()


def number(said: dict[str, object], name: str) -> float:
    value = said[name]
    assert isinstance(value, int | float)
    return value
