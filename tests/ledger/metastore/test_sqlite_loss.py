"""Going on with an embedded store that lost its newest commits, at an operator's word."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dlog.cli.app import app
from ledger.errors import DamagedMetadata
from ledger.metastore.port import ANY_VERSION
from ledger.metastore.sqlite_files import NothingLost, accept_loss
from tests.ledger.metastore.backends import Backend
from tests.ledger.metastore.sqlite_stores import (
    DATABASE,
    VALUE,
    WAL,
    WITNESS,
    Content,
    Files,
    content_of,
    found_in,
    opened,
    put,
    taken,
    used,
)
from tests.waiting import PATIENCE_S


def damaged(directory: Path) -> tuple[Files, Content]:
    """Return a store whose last two commits are damaged, and what it held before them."""
    tree = opened(directory)
    used(tree)
    before, length = content_of(tree), len(taken(directory)[WAL])
    for _ in range(2):
        tree.set("/logs/l0", VALUE, ANY_VERSION)
    files = taken(directory)
    tree.close()
    wal = bytearray(files[WAL])
    wal[length + 100] ^= 1
    return files | {WAL: bytes(wal)}, before


def test_the_newest_state_that_is_whole_goes_on_and_what_is_lost_is_kept_beside(
    tmp_path: Path,
) -> None:
    files, before = damaged(tmp_path / "whole")
    here = tmp_path / "copy"
    put(here, files)
    found = accept_loss(here, really=False, timeout_s=PATIENCE_S)
    assert found.witnessed == found.generation + 2
    assert taken(here) == files
    assert isinstance(found_in(here), str)
    done = accept_loss(here, really=True, timeout_s=PATIENCE_S)
    assert found_in(here) == before
    assert done.copy is not None
    assert taken(done.copy) == files
    put(here, files)  # what was given up does not come back
    assert isinstance(found_in(here), str)


def test_a_missing_witness_is_made_anew(tmp_path: Path) -> None:
    tree = opened(tmp_path)
    used(tree)
    content = content_of(tree)
    tree.close()
    (tmp_path / WITNESS).unlink()
    assert isinstance(found_in(tmp_path), str)
    assert accept_loss(tmp_path, really=True, timeout_s=PATIENCE_S).witnessed is None
    assert found_in(tmp_path) == content


def test_a_whole_store_and_one_with_damaged_rows_are_left_alone(tmp_path: Path) -> None:
    tree = opened(tmp_path)
    used(tree)
    tree.close()
    with pytest.raises(NothingLost):
        accept_loss(tmp_path, really=True, timeout_s=PATIENCE_S)
    files = taken(tmp_path)
    at = files[DATABASE].index(VALUE)
    put(tmp_path, files | {DATABASE: files[DATABASE][:at] + b"?" + files[DATABASE][at + 1 :]})
    changed = taken(tmp_path)
    with pytest.raises(DamagedMetadata, match="does not fit its checksum"):
        accept_loss(tmp_path, really=True, timeout_s=PATIENCE_S)
    assert taken(tmp_path) == changed


async def test_a_store_that_is_in_use_is_left_alone(sqlite: Backend, tmp_path: Path) -> None:
    async with sqlite.one():
        with pytest.raises(OSError, match="in use"):
            accept_loss(tmp_path / "namespace", really=True, timeout_s=PATIENCE_S)


def test_the_command_asks_and_does_it(tmp_path: Path) -> None:
    files, before = damaged(tmp_path / "whole")
    here = tmp_path / "copy"
    put(here, files)
    command = ["metadata", "accept-loss", "--uri", here.as_uri()]
    refused = CliRunner().invoke(app, command, input="n\n")
    assert refused.exit_code == 1
    assert "Give up everything after commit" in refused.stderr
    assert taken(here) == files
    done = CliRunner().invoke(app, [*command, "--yes"])
    assert done.exit_code == 0, done.output
    assert found_in(here) == before
