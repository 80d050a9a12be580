"""What ``dlog console`` refuses; that it serves is tried with a browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.cli.console import login_shown, read_token, say_where
from dlog.console.http_server import ConsoleNotServed, Served
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
    token.chmod(0o600)
    assert "fewer than 16" in shell.refused("console", "--port", "0", "--token-file", str(token))


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620])
def test_a_token_that_others_may_read_or_change_is_refused(
    shell: CliShell, tmp_path: Path, mode: int
) -> None:
    token = tmp_path / "token"
    token.write_text("long enough to be one\n")
    token.chmod(mode)
    with pytest.raises(ConsoleNotServed, match="others may read"):  # else it is served, with no end
        read_token(token)
    said = shell.refused("console", "--port", "0", "--token-file", str(token))
    assert f"others may read its token in {token} (mode {mode:04o})" in said
    assert f"chmod 600 {token}" in said


SERVED = Served("http://127.0.0.1:8080/", "the token", "http://127.0.0.1:8080/login?token=once")


def test_a_login_is_shown_to_a_terminal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for as_json in (False, True):
        with login_shown(SERVED, tmp_path / "made") as login:
            say_where(SERVED.address, login, as_json=as_json)
            said = capsys.readouterr().out
            [file] = (tmp_path / "made").iterdir()
            assert str(file) in said
            assert "token" not in said.replace(str(file), "")
            assert file.read_text().split("\n")[:2] == [SERVED.login, SERVED.token]
            assert file.stat().st_mode & 0o777 == 0o600
            assert file.parent.stat().st_mode & 0o777 == 0o700
        assert not file.exists()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with login_shown(SERVED, tmp_path / "none") as login:
        say_where(SERVED.address, login, as_json=False)
    said = capsys.readouterr().out
    assert SERVED.login in said
    assert "token: the token" in said
    assert not (tmp_path / "none").exists()


def test_a_token_that_was_given_is_not_shown_again(tmp_path: Path) -> None:
    with login_shown(Served("http://127.0.0.1:1/", "given", ""), tmp_path) as login:
        assert login == {}
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConsoleNotServed, match="give --token-file"),
        login_shown(SERVED, tmp_path / "file"),
    ):
        pass
