"""Says at the end how much the crash and damage tests tried."""

import pytest

from tests.bookie.tally import tally


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if tally:
        terminalreporter.section("bookie storage")
    for what, count in sorted(tally.items()):
        terminalreporter.write_line(f"{count:>8} {what}")
