"""Says at the end how much the crash and damage tests tried."""

import pytest

from tests.bookie.tally import tally


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Give what was counted to the process that prints it, where several share the tests."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["tally"] = dict(tally)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    tally.update(getattr(node, "workeroutput", {}).get("tally", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if tally:
        terminalreporter.section("bookie storage")
    for what, count in sorted(tally.items()):
        terminalreporter.write_line(f"{count:>8} {what}")
