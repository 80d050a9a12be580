"""The files that the first release has written are read by this version."""

import json
import zipfile
from pathlib import Path

from bookie.disk.port import Directories, RealDisk
from bookie.storage.engine import BookieStorage
from bookie.tools.check import check
from ledger.requests import Status
from tests.bookie.promises import KEY, run_of
from tests.bookie.version_2 import CONFIG, EXPECTED, KEPT, told


def unpack(kept_as: Path, into: Path) -> dict[str, dict[str, object]]:
    with zipfile.ZipFile(kept_as) as kept:
        expected: dict[str, dict[str, object]] = json.loads(kept.read(EXPECTED))
        kept.extractall(into, [name for name in kept.namelist() if name != EXPECTED])
    return expected


def test_a_bookie_that_was_killed_is_started_by_this_version(tmp_path: Path) -> None:
    expected = unpack(KEPT, tmp_path)
    assert len(expected) == 7
    for _ in range(2):
        storage = BookieStorage.open(RealDisk(tmp_path), CONFIG)
        assert told(storage) == expected
        for ledger_id in (5, 71):
            assert storage.add(run_of(ledger_id, 9)) == (Status.NO_SUCH_LEDGER, 0)
        assert storage.fence(72, KEY)[0] is Status.OK
        storage.close()


def test_the_offline_check_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    unpack(KEPT, tmp_path)
    report = check(Directories.single(RealDisk(tmp_path)))
    assert report.is_whole
    assert report.counts.index_entries > 600
