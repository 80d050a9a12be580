"""A bar is drawn where a person looks, and nothing elsewhere; completion is for every shell."""

import io
import sys

import pytest
from typer.testing import CliRunner

from dlog.cli.app import app
from dlog.cli.output import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def draw() -> None:
    with progress_bar("verifying a") as tell:
        tell(1, 4, "1 of 4 segments")
        tell(4, 4, "4 of 4 segments")
        tell(0, None, "how many is not known")


def test_a_person_sees_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    draw()
    assert "verifying a" in terminal.getvalue()


def test_a_file_or_pipe_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    draw()
    assert pipe.getvalue() == ""


@pytest.mark.parametrize(
    ("shell", "told"),
    [
        ("bash", "complete -o default"),
        ("zsh", "#compdef dlog"),
        ("fish", "complete --command dlog"),
    ],
)
def test_each_shell_gets_a_script_that_asks_dlog(shell: str, told: str) -> None:
    result = CliRunner().invoke(app, ["completion", shell], prog_name="dlog")
    assert result.exit_code == 0
    assert told in result.stdout
    assert f"_DLOG_COMPLETE=complete_{shell}" in result.stdout


def test_a_shell_that_is_not_known_is_a_usage_error() -> None:
    result = CliRunner().invoke(app, ["completion", "tcsh"], prog_name="dlog")
    assert result.exit_code == 2
    assert "tcsh" in result.stderr


def test_commands_and_options_are_completed() -> None:
    def completed(line: str, word: int) -> list[str]:
        environment = {
            "_DLOG_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(word),
        }
        result = CliRunner(env=environment).invoke(app, [], prog_name="dlog")
        return result.stdout.split()

    assert completed("dlog consu", 1) == ["consumer"]
    assert completed("dlog log tru", 2) == ["truncate"]
    assert completed("dlog log truncate x --keep", 4) == ["--keep-bytes", "--keep-age"]
    assert completed("dlog completion z", 2) == ["zsh"]
