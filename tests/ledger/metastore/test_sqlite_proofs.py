"""What an index of the embedded store says is proven by rows, beside damage that nobody verified.

The process that meets the damage runs already: it verified the store when it opened it, and only
what it reads now can tell it. It finds what was committed, or says that the store is damaged.
"""

import asyncio
import logging
import os
import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pytest

from ledger.errors import DamagedMetadata, NoSuchNode
from ledger.metastore import sqlite_tree
from ledger.metastore.ops import name_of, parent_of
from ledger.metastore.port import ANY_VERSION, Versioned
from ledger.metastore.sqlite_files import Database
from ledger.metastore.sqlite_format import reporting_damage
from ledger.metastore.sqlite_tree import SqlTree
from ledger.metrics import METADATA_DAMAGE
from tests.ledger.metastore.backends import Backend
from tests.ledger.metastore.sqlite_stores import (
    DATABASE,
    LASTING,
    PAGE_BYTES,
    VALUE,
    Files,
    content_of,
    emptied,
    flip,
    found_in,
    opened,
    place_of,
    put,
    taken,
    to_format_2,
    used,
)
from tests.waiting import PATIENCE_S

FLIPS_PER_PAGE: Final = max(6, 100 // int(os.environ.get("DLOG_TEST_DAMAGE_EVERY", "11")))
"""With DLOG_TEST_DAMAGE_EVERY=1, all takes a few minutes."""
LEDGERS: Final = 150
SMALL_LEDGERS: Final = 3
ABSENT: Final = ("/logs/none", "/ledgers/0/none", "/none", "/none/below", "/logs/l0/below")

Content = dict[str, Versioned]


class Running:
    """A process that has verified the store, and reads it through a connection of now."""

    def __init__(self, directory: Path) -> None:
        self._database = Database(directory)
        self._database.create(timeout_s=PATIENCE_S)

    @contextmanager
    def tree(self) -> Iterator[SqlTree]:
        with (
            reporting_damage(str(self._database.path)),
            closing(self._database.connect(timeout_s=PATIENCE_S)) as tree,
        ):
            yield tree

    def verify(self) -> None:
        self._database.verify(timeout_s=PATIENCE_S)


def made(directory: Path, *, ledgers: int = SMALL_LEDGERS) -> Content:
    """Make a store, closed, and return what is in it."""
    tree = opened(directory)
    used(tree)
    tree._connection.execute("PRAGMA synchronous = OFF")
    for n in range(ledgers):
        tree.create(f"/ledgers/{n % 3}/{n}", VALUE * (n % 5), owner=None, sequential=False)
    whole = content_of(tree)
    tree._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    tree.close()
    return whole


def flipped(directory: Path, seed: int) -> Iterator[tuple[int, int]]:
    """Yield places and bits, some of each page that there are."""
    rng = random.Random(seed)
    content = (directory / DATABASE).read_bytes()
    for page in range(0, len(content), PAGE_BYTES):
        used_places = [at for at in range(page, page + PAGE_BYTES) if content[at]]
        for at in rng.sample(used_places, min(FLIPS_PER_PAGE, len(used_places))):
            yield at, rng.randrange(8)


def expected_of(whole: Content) -> dict[tuple[str, str], object]:
    """Return what each read answers, by its name and path."""
    expected: dict[tuple[str, str], object] = {}
    for path, versioned in whole.items():
        expected["get", path] = versioned
        expected["exists", path] = versioned.version
    for path in ("/", *whole):
        below = [name_of(other) for other in whole if parent_of(other) == path]
        expected["children", path] = sorted(below)
    for path in ABSENT:
        expected["get", path] = expected["children", path] = NoSuchNode
        expected["exists", path] = None
    return expected


def damaged_reads(tree: SqlTree, expected: dict[tuple[str, str], object]) -> int:
    """Return how many reads find damage. All others find what is expected."""
    damaged = 0
    for (read, path), right in expected.items():
        try:
            with reporting_damage("it"):
                assert answer(tree, read, path) == right, (read, path)
        except DamagedMetadata:
            damaged += 1
    return damaged


def answer(tree: SqlTree, read: str, path: str) -> object:
    try:
        return getattr(tree, read)(path)
    except NoSuchNode:
        return NoSuchNode


@pytest.mark.slow
def test_with_any_bit_flipped_a_process_that_runs_reads_what_is_right_or_says_damage(
    tmp_path: Path,
) -> None:
    whole = made(tmp_path, ledgers=LEDGERS)
    files = taken(tmp_path)
    expected = expected_of(whole)
    running = Running(tmp_path)
    damaged = 0
    for at, bit in flipped(tmp_path, seed=1):
        put(tmp_path, files)
        flip(tmp_path, at, bit)
        try:
            with running.tree() as tree:
                damaged += damaged_reads(tree, expected) > 0
        except DamagedMetadata:
            damaged += 1
    assert damaged > 0


@pytest.mark.slow
def test_with_any_bit_flipped_a_write_is_done_rightly_or_says_damage(tmp_path: Path) -> None:
    made(tmp_path)
    files = taken(tmp_path)
    running = Running(tmp_path)

    def change(tree: SqlTree) -> None:
        tree.create("/logs/l7", VALUE, owner=None, sequential=False)
        tree.set("/logs/l1", VALUE, ANY_VERSION)
        tree.delete("/ledgers/1/1", ANY_VERSION)
        tree.end_session("s")

    with running.tree() as tree:
        change(tree)
        expected = expected_of(content_of(tree))
    for at, bit in flipped(tmp_path, seed=2):
        put(tmp_path, files)
        flip(tmp_path, at, bit)
        try:
            with running.tree() as tree:
                change(tree)
                damaged_reads(tree, expected)
        except DamagedMetadata:
            continue


def test_a_name_that_is_changed_in_the_index_of_a_list_is_damage(tmp_path: Path) -> None:
    made(tmp_path)
    running = Running(tmp_path)
    flip(tmp_path, place_of(tmp_path, "node_by_parent", b"/logsl0"))
    with running.tree() as tree:
        with pytest.raises(DamagedMetadata, match="below /logs does not fit"):
            tree.children("/logs")
        assert tree.get("/logs/l0").value == VALUE
        with pytest.raises(DamagedMetadata):
            tree.exists("/logs/none")
    with pytest.raises(DamagedMetadata):
        running.verify()


@pytest.mark.parametrize("proven_by_list_max", [0, 2_000])
def test_a_node_that_its_index_does_not_find_is_damage_and_not_absent(
    proven_by_list_max: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_tree, "PROVEN_BY_LIST_MAX", proven_by_list_max)
    made(tmp_path)
    running = Running(tmp_path)
    flip(tmp_path, place_of(tmp_path, "sqlite_autoindex_node_1", b"/logs/l0"), bit=4)
    with running.tree() as tree:
        assert tree.children("/logs") == ["l0", "l1"]
        for read in (tree.get, tree.exists, tree.children):
            with pytest.raises(DamagedMetadata, match="/logs/l0 is there, but is not found"):
                read("/logs/l0")
        for write in (
            lambda: tree.delete("/logs/l0", ANY_VERSION),
            lambda: tree.set("/logs/l0", b"", ANY_VERSION),
            lambda: tree.create("/logs/l0", b"", owner=None, sequential=False),
        ):
            with pytest.raises(DamagedMetadata), reporting_damage("it"):
                write()
        assert tree.exists("/logs/none") is None
        assert tree.exists("/logs/l1") == 1


def test_pages_of_indexes_that_a_disk_did_not_write_are_damage(tmp_path: Path) -> None:
    """Each of them is whole, and both say what was so before."""
    made(tmp_path)
    before = (tmp_path / DATABASE).read_bytes()
    tree = opened(tmp_path)
    tree.create("/logs/l9", VALUE, owner=None, sequential=False)
    tree.close()
    running = Running(tmp_path)
    now = bytearray((tmp_path / DATABASE).read_bytes())
    for index, entry in (("node_by_parent", b"/logsl9"), ("sqlite_autoindex_node_1", b"/logs/l9")):
        page = place_of(tmp_path, index, entry) // PAGE_BYTES * PAGE_BYTES
        now[page : page + PAGE_BYTES] = before[page : page + PAGE_BYTES]
    (tmp_path / DATABASE).write_bytes(now)
    with running.tree() as tree:
        for read in (tree.get, tree.exists):
            with pytest.raises(DamagedMetadata, match="below /logs does not fit"):
                read("/logs/l9")
        with pytest.raises(DamagedMetadata):
            tree.children("/logs")


def test_a_session_ends_with_its_own_nodes_whatever_the_index_of_owners_says(
    tmp_path: Path,
) -> None:
    tree = opened(tmp_path)
    for session in ("aa", "ac"):
        tree.add_session(session, "boot", 10)
        tree.create(f"/held-by-{session}", b"", owner=session, sequential=False)
    tree.create("/log", VALUE, owner=None, sequential=False)
    tree.close()
    running = Running(tmp_path)
    flip(tmp_path, place_of(tmp_path, "node_by_owner", b"ac"), bit=1)  # "c" becomes "a"
    with running.tree() as tree:
        with pytest.raises(DamagedMetadata, match="another session"):
            tree.end_session("aa")
        assert tree.exists("/held-by-ac") == 0


async def test_a_process_that_runs_reports_damage_that_it_verifies(
    sqlite: Backend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = tmp_path / "namespace"
    async with sqlite.one() as store:
        await store.create("/logs/l0", VALUE)
        await emptied(here)
        await store.verify()
        before = METADATA_DAMAGE.values.get((), 0)
        flip(here, place_of(here, "node_by_parent", b"/logsl0"))
        with caplog.at_level(logging.ERROR), pytest.raises(DamagedMetadata):
            await store.verify()
        assert METADATA_DAMAGE.values.get((), 0) > before
        assert "metadata_damaged" in caplog.text


async def test_others_read_and_write_while_everything_is_verified(
    sqlite: Backend, tmp_path: Path
) -> None:
    made(tmp_path / "namespace", ledgers=LEDGERS)
    async with sqlite.two() as (one, other):
        verified = [asyncio.create_task(one.verify()) for _ in range(3)]
        for n in range(20):
            await other.create(f"/logs/new-{n}")
            await one.children("/logs")
        await asyncio.gather(*verified)


def made_before(directory: Path) -> Content:
    """Make a store as it was made before lists of children were proven."""
    whole = made(directory)
    to_format_2(directory)
    return whole


def test_a_store_of_before_lists_were_proven_is_upgraded_in_place(tmp_path: Path) -> None:
    whole = made_before(tmp_path)
    assert found_in(tmp_path) == whole
    running = Running(tmp_path)
    running.verify()
    flip(tmp_path, place_of(tmp_path, "node_by_parent", b"/logsl0"))
    with running.tree() as tree, pytest.raises(DamagedMetadata):
        tree.children("/logs")


def test_a_store_of_before_lists_were_proven_is_left_alone_if_it_is_damaged(
    tmp_path: Path,
) -> None:
    made_before(tmp_path)
    files: Files = taken(tmp_path)
    flip(tmp_path, (tmp_path / DATABASE).read_bytes().index(VALUE))
    damaged = taken(tmp_path)
    assert damaged != files
    found = found_in(tmp_path)
    assert isinstance(found, str)
    for name in LASTING:
        assert taken(tmp_path).get(name, b"") == damaged.get(name, b""), name
