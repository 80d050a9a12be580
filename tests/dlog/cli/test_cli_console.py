"""What ``dlog console`` refuses; that it serves is tried with a browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dlog.cli.cli_shell import CliShell, cli_shell


@pytest.fixture(scope="module")
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        yield made


def test_it_is_not_served_to_others_without_tls(shell: CliShell) -> None:
    assert "it needs TLS" in shell.refused("console", "--host", "0.0.0.0", "--port", "0")
    said = shell.refused("console", "--host", "0.0.0.0", "--port", "0", "--tls")
    assert "--tls needs DLOG_TLS" in said


def test_a_token_that_could_be_guessed_is_refused(shell: CliShell, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("short\n")
    assert "fewer than 16" in shell.refused("console", "--port", "0", "--token-file", str(token))
