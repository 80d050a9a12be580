"""Writes `version_2.zip`: the files of a bookie as the first release leaves them when it is killed.

    python -m tests.bookie.version_2

The file is kept for ever: every later version must be able to read it. It is made again only while
nothing was released; later versions get files of their own.
"""

import hashlib
import json
import random
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bookie.disk.port import RealDisk
from bookie.storage.config import StorageConfig
from bookie.storage.engine import BookieStorage
from ledger.entry import encode_lac
from ledger.requests import AddRun, Status
from tests.bookie.promises import KEY, entries_of, run_of

KEPT: Final = Path(__file__).with_name("version_2.zip")
EXPECTED: Final = "expected.json"
CONFIG: Final = StorageConfig(
    journal_file_bytes_max=20_000, journal_preallocate_bytes=1024, entry_log_bytes_max=20_000
)
_DATE: Final = (2026, 11, 21, 0, 0, 0)


def main() -> None:
    with TemporaryDirectory() as name:
        root = Path(name)
        expected = _write(root)
        with zipfile.ZipFile(KEPT, "w", zipfile.ZIP_DEFLATED) as kept:
            for path in sorted(root.rglob("*")):
                if path.is_file() and path.name != "LOCK":
                    _put(kept, str(path.relative_to(root)), path.read_bytes())
            _put(kept, EXPECTED, json.dumps(expected, indent=1).encode())


def told(storage: BookieStorage) -> dict[str, dict[str, object]]:
    """Return everything that can be asked of *storage*, as JSON has it."""
    answers: dict[str, dict[str, object]] = {}
    for ledger_id in storage.ledger_ids():
        lac = storage.lac(ledger_id, KEY)
        answers[str(ledger_id)] = {
            "fenced": lac.fenced,
            "last_entry": lac.last_entry,
            "lac_proof": lac.lac_proof.hex(),
            "entries": {
                str(entry_id): hashlib.sha256(frame).hexdigest()
                for entry_id, frame in entries_of(storage, ledger_id).items()
            },
        }
    return answers


def _write(root: Path) -> dict[str, dict[str, object]]:
    lot = random.Random(1)
    storage = BookieStorage.open(RealDisk(root), CONFIG, entropy=lot.randbytes)
    for turn in range(3):
        _add(storage, run_of(1, *range(100 * turn, 100 * turn + 100)))
        _add(storage, run_of(2, *range(turn, 300, 3)))  # late entries, page by page
        _add(storage, run_of(3 + turn, 0, 1, 20_000))
        storage.fence(3, KEY)
        storage.fence(70 + turn, KEY)
        storage.commit()
        storage.checkpoint()
    frame = encode_lac(ledger_id=4, last_add_confirmed=1, length=9)
    storage.set_lac(AddRun(4, KEY, (-1,), (len(frame),), frame, explicit_lac=True))
    storage.checkpoint()
    storage.delete([5, 71])
    _add(storage, run_of(1, 300, 301))
    _add(storage, run_of(300, 7))
    storage.fence(4, KEY)
    storage.commit()
    return told(storage)


def _add(storage: BookieStorage, run: AddRun) -> None:
    status, _ = storage.add(run)
    assert status is Status.OK


def _put(kept: zipfile.ZipFile, name: str, data: bytes) -> None:
    kept.writestr(zipfile.ZipInfo(name, _DATE), data, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main()
