"""Encrypted logs at the shell: keys are made, given, changed; what is told without one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dlog.cli.cli_shell import CliShell, cli_shell


@pytest.fixture(scope="module")
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        yield made


@pytest.fixture(scope="module")
def keys(shell: CliShell, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a key "first", with which the log "secrets" is encrypted."""
    path = str(tmp_path_factory.mktemp("keys") / "keys")
    assert shell.json("key", "new", "first", "--file", path, "--json") == {
        "key": "first",
        "file": path,
    }
    shell.run("log", "create", "secrets", "--set", "encrypt_with=first")
    lines = Path(path).with_name("lines")
    lines.write_text("hush\n")
    shell.run("--key-file", path, "log", "append", "secrets", "--file", str(lines))
    return path


def test_what_was_appended_with_a_key_is_tailed_with_it(shell: CliShell, keys: str) -> None:
    assert shell.run("--key-file", keys, "log", "tail", "secrets") == "hush\n"
    given = shell.invoke("log", "tail", "secrets", DLOG_KEY_FILE=keys)
    assert given.stdout == "hush\n"


@pytest.mark.parametrize("command", [["tail", "secrets"], ["append", "secrets"]])
def test_without_the_key_an_error_says_what_to_give(
    shell: CliShell, keys: str, command: list[str]
) -> None:
    lines = str(Path(keys).with_name("lines"))
    result = shell.invoke("log", *command, *(["--file", lines] if "append" in command else []))
    assert result.exit_code == 1
    assert "the key 'first' is needed" in result.stderr
    assert "DLOG_KEY_FILE" in result.stderr
    assert "Traceback" not in result.stderr


def test_operators_need_no_key(shell: CliShell, keys: str) -> None:
    assert keys
    assert shell.json("log", "settings", "get", "secrets", "--json")["encrypt_with"] == "first"
    shell.run("log", "verify", "secrets")
    shell.run("log", "show", "secrets")
    traced = shell.json("log", "trace", "secrets", "--offset", "0", "--json")
    assert (traced["encrypted_with"], traced["key"]) == ("first", None)
    assert "the key first" in shell.run("log", "trace", "secrets", "--offset", "0")


def test_segments_are_wrapped_with_another_key(shell: CliShell, keys: str, tmp_path: Path) -> None:
    shell.run("key", "new", "second", "--file", keys)
    shell.run("log", "settings", "set", "secrets", "encrypt_with=second")
    shell.run("log", "create", "other")
    done = shell.json("--key-file", keys, "key", "rewrap", "secrets", "second", "--json")
    assert (done["rewrapped"], done["left"]) == (1, 0)
    newest = tmp_path / "newest"
    newest.write_text(Path(keys).read_text().splitlines()[-1])
    newest.chmod(0o600)
    assert shell.run("--key-file", str(newest), "log", "tail", "secrets") == "hush\n"


def test_a_key_in_place_of_its_name_is_refused_and_not_repeated(shell: CliShell, keys: str) -> None:
    key = Path(keys).read_text().split()[1]
    result = shell.invoke("log", "create", "wrong", "--set", f"encrypt_with={key}")
    assert result.exit_code != 0
    assert "the name of a key" in result.stderr
    assert key not in result.stderr
