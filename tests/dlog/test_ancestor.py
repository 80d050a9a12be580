"""docs/ancestor.md says of each sharp edge of the ancestor what shows that it is gone."""

import re
import threading
from pathlib import Path

from dlog import Log, LogClosed
from dlog.process_settings import ProcessSettings
from dlog.settings import SETTING_NAMES
from dlog.testing import cluster
from tests.simulation.mutations import MUTATIONS
from tests.waiting import TEST_S

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "ancestor.md").read_text()


def test_every_proof_that_the_table_names_exists() -> None:
    sources = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    defined = {name for text in sources for name in re.findall(r"def (test_\w+)\(", text)}
    named = set(re.findall(r"`(test_\w+)`", TABLE))
    assert len(named) > 40
    assert named <= defined, sorted(named - defined)
    invariants = ROOT / "tests" / "simulation" / "logs" / "invariants"
    for name in re.findall(r"invariant `(\w+)`", TABLE):
        assert (invariants / f"{name}.py").is_file(), name
    assert set(re.findall(r"mutation `(\w+)`", TABLE)) <= set(MUTATIONS)


def test_there_are_as_many_settings_as_the_table_says() -> None:
    assert (
        f"{len(ProcessSettings.model_fields)} of a process, {len(SETTING_NAMES)} of a log" in TABLE
    )


def test_a_read_of_an_empty_log_ends_and_one_that_waits_is_ended_by_closing() -> None:
    with cluster() as made:
        Log.open("log", uri=made.uri).close()
        assert list(Log.tail("log", uri=made.uri, follow=False)) == []
        reader = Log.tail("log", uri=made.uri)
        ended: list[BaseException] = []
        waits = threading.Event()

        def wait_for_ever() -> None:
            waits.set()
            try:
                next(reader)
            except LogClosed as error:
                ended.append(error)

        thread = threading.Thread(target=wait_for_ever)
        thread.start()
        assert waits.wait(TEST_S)
        reader.close()
        thread.join(TEST_S)
        assert not thread.is_alive()
        assert ended
