"""A command that says that it only reads writes nothing: it is run on a store that refuses to."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

import ledger.client
import ledger.metastore
from dlog import Log
from dlog.cli.commands import READS
from tests.dlog.cli.cli_shell import CliShell, cli_shell
from tests.dlog.cli.test_cli_changes import commands

WRITES: Final = frozenset({"create", "set", "delete", "multi"})
ARGUMENTS: Final = {
    "status": "",
    "doctor": "",
    "log list": "-l",
    "log show": "flights",
    "log count": "flights",
    "log seek": "flights 10",
    "log dump": "flights --records",
    "log trace": "flights --offset 10",
    "log exists": "flights",
    "log watch": "--limit 1",
    "log settings get": "flights",
    "log schema list": "flights",
    "log schema show": "flights",
    "consumer list": "flights",
    "consumer show": "flights printer",
    "consumer lag": "flights",
    "leader list": "",
    "leader show": "flights",
    "leader wait": "flights --timeout 0",
    "replica list": "",
    "replica show": "flights",
    "replica verify": "flights",
    "kafka topic list": "",
    "kafka topic describe": "flights",
    "kafka user list": "",
    "table show": "flights",
    "table files": "flights",
    "table verify": "flights",
    "ledger list": "",
    "ledger show": "{ledger}",
    "ledger read": "{ledger}",
    "ledger underreplicated": "",
    "bookie status": "",
    "bookie ready": "{bookie}",
    "bookie list": "",
    "bookie where": "flights",
    "autorecovery status": "",
    "access list": "",
    "access check": "cn:billing flights",
    "changes list": "",
    "cluster status": "",
    "quota list": "",
    "debug bundle": "--out {directory}/bundle.tar.gz",
}
"""Of each command that reads a cluster."""
FAILS: Final = frozenset(
    {"leader show", "leader wait", "replica verify", "bookie status"}
    | {"table show", "table files", "table verify", "log schema show"}
)
"""They have asked the store, and there is nobody more to ask: no leader, replica, operator, table.
"""


class RefusingStore:
    """A metadata store that refuses writes, and remembers what it was asked."""

    def __init__(self, store: Any, asked: list[str]) -> None:
        self._store, self._asked = store, asked

    def __getattr__(self, name: str) -> Any:
        if name in WRITES:
            self._asked.append(name)
            raise AssertionError(f"it writes: {name}")
        if name in {"get", "children", "exists"}:
            self._asked.append(name)
        return getattr(self._store, name)


@pytest.fixture(scope="module")
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        made.write("flights")
        with Log.consumer("printer", "flights", start=0, uri=made.uri):
            pass
        yield made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What commands ask stores for, which refuse writes."""
    asked: list[str] = []
    open_store = ledger.metastore.open_store

    async def refusing(*arguments: Any, **more: Any) -> Any:
        return RefusingStore(await open_store(*arguments, **more), asked)

    monkeypatch.setattr(ledger.metastore, "open_store", refusing)
    monkeypatch.setattr(ledger.client, "open_store", refusing)
    return asked


def test_no_command_that_reads_a_cluster_is_left_out() -> None:
    reading = {
        words
        for words, command in commands()
        if command.effect is READS and "uri" in {param.name for param in command.params}
    }
    assert set(ARGUMENTS) == reading


@pytest.mark.parametrize("words", ARGUMENTS)
def test_a_command_that_reads_writes_nothing(
    shell: CliShell, asked: list[str], words: str, tmp_path: object
) -> None:
    given = ARGUMENTS[words].format(ledger=0, bookie="bookie-0", directory=tmp_path)
    result = shell.invoke(*words.split(), *given.split())
    assert not WRITES.intersection(asked), (asked, result.output)
    assert asked, result.output
    assert result.exit_code == (words in FAILS), (result.output, result.exception)


def test_a_command_that_writes_would_be_noticed(shell: CliShell, asked: list[str]) -> None:
    assert shell.invoke("log", "create", "another").exit_code != 0
    assert WRITES.intersection(asked)
