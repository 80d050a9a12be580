"""What a start of ``dlog`` imports. Names are counted, as times differ from machine to machine."""

import os
import subprocess
import sys

import pytest

from dlog.cli.app import _GROUPS, app

pytestmark = pytest.mark.integration

NEVER = {"asyncio", "bookie.config", "dlog.aio", "dlog.local", "google", "kazoo", "ledger.client"}
"""What an answer that asks no cluster needs nothing of."""


RUN = (
    "import atexit, sys; atexit.register(lambda: sys.stderr.write(' '.join(sys.modules))); "
    "from dlog.cli import main; main()"
)


def imported(*words: str, **environment: str) -> set[str]:
    """Return the modules that ``dlog`` imports for the command line *words*."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environment,
    )
    assert done.stdout
    return set(done.stderr.split())


def completed(words: str) -> set[str]:
    """Return the modules that a shell imports for the completion of *words*."""
    return imported(
        _DLOG_COMPLETE="complete_bash",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split()) - 1),
    )


def groups_of(modules: set[str]) -> set[str]:
    """Return the groups of commands whose modules are among *modules*."""
    return {
        name
        for name, (module, _) in _GROUPS.items()
        if f"dlog.cli.{module.partition(':')[0]}" in modules
    }


def test_the_version_is_said_without_commands() -> None:
    modules = imported("--version")
    assert not modules & {"asyncio", "dlog.cli.app", "kazoo", "ledger.client", "rich", "typer"}
    assert len(modules) < 300


def test_help_imports_no_group_of_commands() -> None:
    modules = imported("--help")
    assert groups_of(modules) == set()
    assert not modules & NEVER


def test_help_of_a_group_imports_no_other() -> None:
    modules = imported("log", "--help")
    assert groups_of(modules) == {"log"}
    assert not modules & NEVER - {"google"}


def test_a_shell_completes_words_without_a_client() -> None:
    modules = completed("dlog lo")
    assert groups_of(modules) == set()
    assert not modules & (NEVER | {"rich"})
    modules = completed("dlog log se")
    assert groups_of(modules) == {"log"}
    assert not modules & (NEVER - {"google"} | {"rich"})


@pytest.mark.parametrize("name", _GROUPS)
def test_help_of_each_group_says_what_the_list_of_groups_does(name: str) -> None:
    from typer.testing import CliRunner

    said = CliRunner().invoke(app, [name, "--help"])
    assert said.exit_code == 0
    assert _GROUPS[name][1].split()[0] in said.stdout
    assert "Commands" in said.stdout
