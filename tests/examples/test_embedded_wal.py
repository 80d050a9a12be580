"""The write-ahead log of one process has what was confirmed, whatever became of the process."""

from pathlib import Path

import pytest

from tests.examples.programs import program

pytestmark = pytest.mark.integration


async def test_what_was_confirmed_survives_a_kill(tmp_path: Path) -> None:
    done = 0
    for _ in range(3):
        async with program("embedded_wal", str(tmp_path)) as bank:
            recovered = await bank.hear("recovered")
            if done:
                assert f"'alice': {done}" in recovered
            for _ in range(20):
                bank.say("deposit alice 1")
                assert await bank.hear("done") == f"done {done}"
                done += 1
            bank.kill()  # of a store that lies open, and a log that nobody closed
    async with program("embedded_wal", str(tmp_path)) as bank:
        assert await bank.hear() == f"recovered {done} changes: {{'alice': {done}}}"
        bank.say("transfer alice bob 1000")
        await bank.hear("refused")
        bank.say("transfer alice bob 20")
        await bank.hear("done")
        bank.say("show")
        assert await bank.hear() == f"{{'alice': {done - 20}, 'bob': 20}}"
        status, errors = await bank.interrupt()
        assert status == 130
        assert "Traceback" not in errors
