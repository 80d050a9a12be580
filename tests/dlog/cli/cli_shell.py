"""Runs ``dlog`` in this process against a cluster in this process: milliseconds a command."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.testing import CliRunner, Result

import dlog
from dlog.cli.app import app
from dlog.testing import Cluster, cluster


def of_interest(record: logging.LogRecord) -> bool:
    """Return False for what two event loops say of each other.

    gRPC has one wake-up descriptor for all loops of a process: there are two here, the
    cluster's and the command's, and the one that comes second finds it empty and says so."""
    return "PollerCompletionQueue" not in record.getMessage()


@contextmanager
def logging_as_it_was() -> Iterator[None]:
    """A command lets its log go to the stderr of its time."""
    root, loops = logging.getLogger(), logging.getLogger("asyncio")
    handlers, level = root.handlers[:], root.level
    loops.addFilter(of_interest)
    try:
        yield
    finally:
        loops.removeFilter(of_interest)
        root.handlers[:] = handlers
        root.setLevel(level)


def command(*arguments: str, code: int = 0) -> Result:
    """Run one that finds what it needs in the environment, and exits with *code*."""
    with logging_as_it_was():
        result = CliRunner().invoke(app, list(arguments), prog_name="dlog")
    assert result.exit_code == code, result.output + result.stderr
    return result


def unwrapped(text: str) -> str:
    """Return the words of a box that typer draws around an error."""
    return " ".join(text.replace("│", " ").split())


class CliShell:
    def __init__(self, made: Cluster) -> None:
        self.cluster = made
        self.uri = made.uri
        self.audit = "off"
        """Else there is one log, and one ledger, more than a test has made."""

    def invoke(self, *arguments: str, stdin: str = "", **more: str) -> Result:
        environment = {"DLOG_URI": self.uri, "DLOG_CONFIG": None, "DLOG_AUDIT": self.audit, **more}
        runner = CliRunner(env=environment)
        with logging_as_it_was():
            return runner.invoke(app, list(arguments), input=stdin, prog_name="dlog")

    def run(self, *arguments: str, stdin: str = "", code: int = 0) -> str:
        """Return stdout, of a command that exits with *code*."""
        result = self.invoke(*arguments, stdin=stdin)
        assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
        return result.stdout

    def json(self, *arguments: str, code: int = 0) -> Any:
        [line] = self.json_lines(*arguments, code=code)
        return line

    def json_lines(self, *arguments: str, code: int = 0) -> list[Any]:
        return [json.loads(line) for line in self.run(*arguments, "--json", code=code).splitlines()]

    def refused(self, *arguments: str, code: int = 1) -> str:
        """Return the one sentence that it said."""
        result = self.invoke(*arguments)
        assert result.exit_code == code, (result.stdout, result.stderr)
        assert "Traceback" not in result.stderr
        assert result.stdout == ""
        if code == 1:
            assert len(result.stderr.strip().splitlines()) == 1, result.stderr
        return unwrapped(result.stderr)

    def write(self, log: str, first: int = 0, end: int = 30, *, roll_every: int = 10) -> None:
        """Append records: value ``b"<n>"``, txid 10 n, time 1000 n; some to a segment."""
        with dlog.Log.open(log, uri=self.uri) as writer:
            for number in range(first, end):
                if number > first and number % roll_every == 0:
                    writer.roll()
                writer.append(
                    b"%d" % number,
                    key=b"k%d" % (number % 3),
                    txid=10 * number,
                    timestamp_ms=1000 * number,
                )


@contextmanager
def cli_shell() -> Iterator[CliShell]:
    with cluster() as made:
        yield CliShell(made)
