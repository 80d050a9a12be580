"""Fixtures for the tests of the command line."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.testing

from tests.namespaces import make


@pytest.fixture(scope="session", autouse=True)
def commands_are_built_once() -> Iterator[None]:
    """Typer builds all commands of an application at each call, which takes 30 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def without_bookies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands find a namespace that nobody serves."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DLOG_URI", make((tmp_path / "metadata").as_uri()))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("DLOG_AUDIT", "off")  # nobody would keep it
