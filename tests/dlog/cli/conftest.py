"""Fixtures for the tests of the command line."""

from collections.abc import Iterator
from functools import cache

import pytest
import typer.testing


@pytest.fixture(scope="session", autouse=True)
def commands_are_built_once() -> Iterator[None]:
    """Typer builds all commands of an application at each call, which takes 30 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield
