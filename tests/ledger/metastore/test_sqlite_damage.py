"""The embedded store's files, damaged, shortened, taken away or exchanged for older ones: told.

An open finds what was committed, all of it, or refuses; and what is refused is not touched.
"""

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from ledger.errors import DamagedMetadata, MetadataUnavailable
from ledger.metastore.port import ANY_VERSION
from ledger.metastore.sqlite_format import check_place
from ledger.metastore.sqlite_tree import State
from ledger.metastore.sqlite_witness import (
    EMPTY_TOTAL,
    SLOT_BYTES,
    WITNESS_BYTES,
    CommitMarker,
    Witness,
    next_chain,
)
from tests.ledger.metastore.backends import Backend
from tests.ledger.metastore.sqlite_stores import (
    DATABASE,
    LASTING,
    VALUE,
    WAL,
    WITNESS,
    Files,
    content_of,
    found_in,
    opened,
    put,
    taken,
    used,
)
from tests.waiting import PATIENCE_S

EVERY: Final = int(os.environ.get("DLOG_TEST_DAMAGE_EVERY", "11"))
"""Each byte of so many is damaged; 1 takes a minute."""
LARGE_FLIPS: Final = 60
_PADDING: Final = 64
"""Bytes of zeros in a row from which on most of them are room that is not used."""


def crashed(directory: Path) -> Files:
    """Return a store of which the newest commits are in the write-ahead log only."""
    tree = opened(directory)
    used(tree)
    tree._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for n in range(3):
        tree.set("/logs/l0", VALUE + b"%d" % n, ANY_VERSION)
    files = taken(directory)
    tree.close()
    return files


def closed(directory: Path) -> Files:
    """Return a store that was closed: there is no write-ahead log."""
    crashed(directory)
    return taken(directory)


def older(directory: Path) -> Files:
    """Return *directory* as it is, after some more commits."""
    files = taken(directory)
    tree = opened(directory)
    for _ in range(3):
        tree.set("/logs/l0", VALUE, ANY_VERSION)
    tree.close()
    return files


def places(content: bytes, stride: int) -> Iterator[int]:
    """Yield every *stride*th place that is no padding, and of the padding some."""
    zeros = 0
    for at, byte in enumerate(content):
        zeros = 0 if byte else zeros + 1
        if (zeros < _PADDING and at % stride == 0) or at % 509 == 0:
            yield at


def refused(directory: Path, files: Files) -> str:
    """Return why an open of *files* is refused. They stay as they are."""
    put(directory, files)
    found = found_in(directory)
    assert isinstance(found, str), "it was opened"
    for name in LASTING:  # an empty write-ahead log is none
        now = directory / name
        assert (now.read_bytes() if now.exists() else b"") == files.get(name, b""), name
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", LASTING)
def test_a_flipped_bit_anywhere_loses_nothing_in_silence(name: str, tmp_path: Path) -> None:
    files = crashed(tmp_path / "whole")
    put(tmp_path / "copy", files)
    whole = found_in(tmp_path / "copy")
    told = 0
    for at in places(files[name], EVERY):
        damaged = bytearray(files[name])
        damaged[at] ^= 1 << at % 8
        put(tmp_path / "copy", files | {name: bytes(damaged)})
        found = found_in(tmp_path / "copy")
        if isinstance(found, str):
            refused(tmp_path / "copy", files | {name: bytes(damaged)})
            told += 1
        else:
            assert found == whole, f"{name}, byte {at}"
    # One of the witness's two slots is enough, and written anew with the next commit.
    assert (told > 0) == (name != WITNESS)


@pytest.mark.slow
def test_flipped_bits_of_a_larger_store_that_was_closed_lose_nothing_in_silence(
    tmp_path: Path,
) -> None:
    tree = opened(tmp_path / "whole")
    used(tree)
    tree._connection.execute("PRAGMA synchronous = OFF")
    for n in range(300):
        tree.create(f"/ledgers/{n % 7}/{n}", VALUE * (n % 5), owner=None, sequential=False)
    whole = content_of(tree)
    tree.close()
    files = taken(tmp_path / "whole")
    rng = random.Random(1)
    for _ in range(LARGE_FLIPS):
        damaged = bytearray(files[DATABASE])
        at = rng.randrange(len(damaged))
        damaged[at] ^= 1 << rng.randrange(8)
        put(tmp_path / "copy", files | {DATABASE: bytes(damaged)})
        found = found_in(tmp_path / "copy")
        assert isinstance(found, str) or found == whole, f"byte {at}"


def emptied(content: bytes) -> bytes:
    return content[:0]


def halved(content: bytes) -> bytes:
    return content[: len(content) // 2]


def without_its_last_byte(content: bytes) -> bytes:
    return content[:-1]


@pytest.mark.parametrize(
    ("made", "name"),
    [*((crashed, name) for name in LASTING), (closed, DATABASE), (closed, WITNESS)],
)
@pytest.mark.parametrize("shortened", [emptied, halved, without_its_last_byte])
def test_a_shortened_file_loses_nothing_in_silence(
    name: str,
    made: Callable[[Path], Files],
    shortened: Callable[[bytes], bytes],
    tmp_path: Path,
) -> None:
    files = made(tmp_path / "whole")
    put(tmp_path / "copy", files)
    whole = found_in(tmp_path / "copy")
    changed = files | {name: shortened(files[name])}
    put(tmp_path / "copy", changed)
    if found_in(tmp_path / "copy") != whole:  # its last page may be in the write-ahead log, too
        refused(tmp_path / "copy", changed)


@pytest.mark.parametrize(
    ("made", "names"),
    [
        (crashed, {DATABASE}),
        (crashed, {WAL}),
        (crashed, {WITNESS}),
        (crashed, {DATABASE, WAL}),
        (crashed, {DATABASE, WITNESS}),
        (closed, {DATABASE}),
        (closed, {WITNESS}),
        (closed, {DATABASE, WITNESS}),
    ],
)
def test_a_file_that_is_gone_is_refused_and_nothing_is_made_in_its_place(
    names: set[str], made: Callable[[Path], Files], tmp_path: Path
) -> None:
    files = made(tmp_path / "whole")
    left = {name: content for name, content in files.items() if name not in names}
    refused(tmp_path / "copy", left)
    assert "put back a backup" in refused(tmp_path / "copy", left)  # and again
    assert DATABASE in left or not (tmp_path / "copy" / DATABASE).exists()


@pytest.mark.parametrize("made", [crashed, closed])
@pytest.mark.parametrize("names", [(DATABASE,), (WITNESS,), (DATABASE, WAL)], ids="-".join)
def test_an_older_copy_of_a_file_is_refused(
    names: tuple[str, ...], made: Callable[[Path], Files], tmp_path: Path
) -> None:
    made(tmp_path / "whole")
    before = older(tmp_path / "whole")
    files = taken(tmp_path / "whole")
    changed = files | {name: before[name] for name in names if name in before}
    assert "older copy" in refused(tmp_path / "copy", changed)


def test_an_older_write_ahead_log_is_refused(tmp_path: Path) -> None:
    tree = opened(tmp_path / "whole")
    used(tree)
    before = taken(tmp_path / "whole")
    for _ in range(3):
        tree.set("/logs/l0", VALUE, ANY_VERSION)
    files = taken(tmp_path / "whole")
    tree.close()
    assert files[DATABASE] == before[DATABASE]
    assert "the newest 3 commits are missing" in refused(
        tmp_path / "copy", files | {WAL: before[WAL]}
    )


def test_a_database_and_a_witness_of_two_stores_do_not_fit(tmp_path: Path) -> None:
    files, others = closed(tmp_path / "one"), closed(tmp_path / "other")
    assert "another history" in refused(tmp_path / "copy", files | {WITNESS: others[WITNESS]})


@pytest.mark.parametrize("left_bytes", [0, SLOT_BYTES, WITNESS_BYTES - 1, WITNESS_BYTES + 1])
def test_a_witness_of_another_size_says_nothing(tmp_path: Path, left_bytes: int) -> None:
    witness = Witness(tmp_path / WITNESS)
    witness.begin(CommitMarker(2, bytes(16)))
    assert witness.read() == CommitMarker(2, bytes(16))
    os.truncate(witness.path, left_bytes)
    assert witness.read() is None
    witness.close()


def test_a_look_without_the_lock_tells_others_that_commit_from_another_history(
    tmp_path: Path,
) -> None:
    def state(generation: int, before: bytes) -> State:
        chain = next_chain(before, generation, EMPTY_TOTAL)
        return State(generation, EMPTY_TOTAL, before, chain)

    witness = Witness(tmp_path / WITNESS)
    third = state(3, bytes(16))
    witness.begin(CommitMarker(3, third.chain))
    seen = CommitMarker(3, third.chain)
    check_place(third, seen, witness, "it")
    check_place(state(4, third.chain), seen, witness, "it")
    for wrong in (state(2, third.chain), state(4, b"x" * 16), state(5, third.chain)):
        with pytest.raises(DamagedMetadata):
            check_place(wrong, seen, witness, "it")
    witness.write(CommitMarker(5, b"y" * 16))  # others went on
    check_place(state(6, b"y" * 16), seen, witness, "it")
    for wrong in (state(2, third.chain), state(7, third.chain)):
        with pytest.raises(DamagedMetadata):
            check_place(wrong, seen, witness, "it")
    witness.close()


def test_a_row_that_another_program_changed_is_refused(tmp_path: Path) -> None:
    tree = opened(tmp_path)
    used(tree)
    tree._connection.execute("DELETE FROM node WHERE path = '/logs/l0'")
    tree.close()
    found = found_in(tmp_path)
    assert isinstance(found, str)
    assert "do not add up" in found


async def test_processes_that_run_notice_damage_when_they_meet_it(
    sqlite: Backend, tmp_path: Path
) -> None:
    here = tmp_path / "namespace"

    async with sqlite.one(session_timeout_s=0.9) as store:
        await store.create("/a", b"v")
        database = here / DATABASE
        async with sqlite.one():  # so that nothing is in the write-ahead log alone
            pass
        tree = opened(here)
        tree._connection.execute("UPDATE node SET value = x'00' WHERE path = '/a'")
        tree.close()
        with pytest.raises(DamagedMetadata) as caught:
            await store.get("/a")
        assert caught.value.path == str(database)
        with pytest.raises(DamagedMetadata):
            await store.set("/a", b"w")


@pytest.mark.slow
async def test_an_older_witness_under_processes_that_run_stops_their_writes(
    sqlite: Backend, tmp_path: Path
) -> None:
    witness = tmp_path / "namespace" / WITNESS

    async with sqlite.one(session_timeout_s=0.9) as store:
        before = witness.read_bytes()
        for path in ("/a", "/b", "/c"):
            await store.create(path)
        witness.write_bytes(before)
        with pytest.raises(DamagedMetadata):
            await store.create("/d")
        witness.unlink()
        with pytest.raises(MetadataUnavailable):
            await store.create("/d")
        async with asyncio.timeout(PATIENCE_S):
            await store.session.lost.wait()
