import os
from pathlib import Path
from typing import Any

import pytest

from dlog import process_settings
from dlog.aio.namespace_connection import connect
from dlog.config import InvalidConfig, default_uri, load, metadata_uri, resolve_uri
from dlog.process_settings import ProcessSettings
from ledger import ClientConfig, LedgerClient
from ledger.errors import InvalidUri
from ledger.metastore.uri import FileUri, parse_uri
from tests.namespaces import made


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [each for each in os.environ if each.startswith("DLOG_")]:
        monkeypatch.delenv(name)
    return tmp_path


def test_without_any_setting_the_local_cluster_is_meant(home: Path) -> None:
    assert resolve_uri() == default_uri() == f"file://{home}/.dlog/local/metadata"


def test_the_argument_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLOG_URI", "file:///from-environment")
    assert resolve_uri() == "file:///from-environment"
    assert resolve_uri("memory://from-argument") == "memory://from-argument"


def test_the_environment_wins_over_the_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".dlog").mkdir()
    (home / ".dlog" / "config.toml").write_text('uri = "file:///from-file"\ntimeout_s = 3.5\n')
    assert resolve_uri() == "file:///from-file"
    monkeypatch.setenv("DLOG_URI", "file:///from-environment")
    settings = load()
    assert (settings.uri, settings.timeout_s) == ("file:///from-environment", 3.5)


def test_settings_are_read_again_where_something_changed_and_only_there(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading takes two milliseconds, and each open of a log asks for it."""
    readings: list[object] = []

    class Counted(ProcessSettings):
        def __init__(self, **given: Any) -> None:
            readings.append(given)
            super().__init__(**given)

    monkeypatch.setattr(process_settings, "ProcessSettings", Counted)
    file = home / "config.toml"
    file.write_text("timeout_s = 3\n")
    monkeypatch.setenv("DLOG_CONFIG", str(file))
    assert [load().timeout_s for _ in range(3)] == [3.0, 3.0, 3.0]
    assert len(readings) == 1
    file.write_text("timeout_s = 3.5\n")
    assert load().timeout_s == 3.5
    monkeypatch.setenv("DLOG_TIMEOUT_S", "4")
    assert load().timeout_s == 4.0
    assert load({"timeout_s": "5"}).timeout_s == 5.0
    monkeypatch.delenv("DLOG_TIMEOUT_S")
    assert load().timeout_s == 3.5
    assert len(readings) == 4


def test_time_outs_are_those_that_the_manual_names() -> None:
    settings = load()
    assert (settings.session_timeout_s, settings.timeout_s) == (10.0, 10.0)
    assert settings.bookie_timeout_s == ClientConfig().bookie_timeout_s == 5.0


async def test_who_connects_by_a_uri_has_the_time_outs_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DLOG_BOOKIE_TIMEOUT_S", "7")
    client = await connect(await made("memory://time-outs"))
    assert isinstance(client, LedgerClient)
    assert client._environment.transport._limits.timeout_s == 7.0  # type: ignore[attr-defined]
    await client.close()


def test_another_file_can_be_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / "other.toml"
    path.write_text("session_timeout_s = 2\n")
    monkeypatch.setenv("DLOG_CONFIG", str(path))
    assert load().session_timeout_s == 2.0


def test_a_file_that_is_named_must_exist(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLOG_CONFIG", str(home / "absent.toml"))
    with pytest.raises(InvalidConfig, match=r"absent\.toml"):
        load()


@pytest.mark.parametrize(
    "text", ['url = "zk://h:1/"', "timeout_s = -1", 'timeout_s = "soon"', "uri = [", "uri = \xff"]
)
def test_a_file_with_an_unknown_key_or_a_bad_value_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = home / "bad.toml"
    path.write_bytes(text.encode("latin-1"))
    monkeypatch.setenv("DLOG_CONFIG", str(path))
    with pytest.raises(InvalidConfig, match=r"bad\.toml"):
        load()


def test_a_misspelt_variable_is_refused_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLOG_URL", "zk://h:2181/")
    with pytest.raises(InvalidConfig, match=r"DLOG_URL is unknown; did you mean DLOG_URI\?"):
        resolve_uri()


@pytest.mark.parametrize(
    "name", ["DLOG_SESSION_TIMEOUT", "DLOG_TIMEOUT", "DLOG_TLSCA", "DLOG_URIS", "DLOG_KEYFILE"]
)
def test_a_name_close_to_a_known_one_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    with pytest.raises(InvalidConfig, match=f"{name} is unknown; did you mean DLOG_"):
        load()


@pytest.mark.parametrize(
    "name",
    [
        "DLOG_PORT",
        "DLOG_SERVICE_HOST",
        "DLOG_SERVICE_PORT_HTTP",
        "DLOG_PORT_3181_TCP_ADDR",
        "DLOG_CONSOLE_PORT",
        "DLOG_TLS_PORT_443_TCP",
        "DLOG_COLOUR_OF_THE_TEAM",
    ],
)
def test_a_variable_of_something_else_is_warned_of_once(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dlog.process_settings._warned", set())
    monkeypatch.setenv(name, "tcp://10.0.0.1:3181")
    load()
    load()
    assert [record.message for record in caplog.records if name in record.message] == [
        f"unknown_variable_ignored variable='{name}'"
    ]


def test_a_bad_value_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLOG_TIMEOUT_S", "soon")
    with pytest.raises(InvalidConfig, match="timeout_s"):
        load()


@pytest.mark.parametrize(
    "uri", ["", "  ", "flights", "http://h/", "file:", "file://relative/x", "zk://", "://x"]
)
def test_a_uri_that_no_store_takes_is_refused(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidUri):
        resolve_uri(uri)
    monkeypatch.setenv("DLOG_URI", uri)
    with pytest.raises(InvalidUri):
        resolve_uri()


@pytest.mark.parametrize("uri", ["zk://a:2181,b:2181/root", "file:///x", "memory://m"])
def test_a_good_uri_is_taken_as_it_is(uri: str) -> None:
    assert resolve_uri(uri) == uri


def test_the_metadata_of_a_cluster_is_in_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert metadata_uri(Path("cluster")) == f"file://{tmp_path}/cluster/metadata"
    assert metadata_uri(Path("~/c")) == f"file://{tmp_path}/c/metadata"


def test_a_directory_with_special_characters_is_found_again_by_its_uri(tmp_path: Path) -> None:
    directory = tmp_path / "50% of #1?"
    assert parse_uri(metadata_uri(directory)) == FileUri(directory / "metadata")


def test_without_a_home_directory_what_is_named_is_used_and_the_rest_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setenv("DLOG_TIMEOUT_S", "3")
    assert load().timeout_s == 3.0
    assert resolve_uri("file:///named") == "file:///named"
    with pytest.raises(InvalidConfig, match=r"no home directory.*set HOME, or DLOG_CONFIG"):
        resolve_uri()


def test_a_home_directory_of_somebody_else_has_no_file_for_this_user(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As containers and sudo leave HOME."""
    is_file = Path.is_file

    def denied(path: Path) -> bool:
        if path.is_relative_to(home):
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", denied)
    assert load().uri is None
    monkeypatch.setenv("DLOG_CONFIG", str(home / "named.toml"))
    with pytest.raises(InvalidConfig, match=r"Permission denied"):
        load()
