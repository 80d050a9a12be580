"""What a process may be told of TLS, and what it is refused."""

import pytest

from ledger.errors import InvalidTls
from ledger.security.settings import OFF, NameKind, TlsMode, TlsSettings, tls_settings


def test_nothing_said_means_off() -> None:
    assert tls_settings() == OFF
    assert tls_settings("", "", "", "") == OFF
    assert tls_settings("off").mode is TlsMode.OFF


def test_files_without_a_mode_are_refused_because_they_do_not_mean_off() -> None:
    with pytest.raises(InvalidTls, match="DLOG_TLS is not; say one of off, optional, required"):
        tls_settings(None, "ca.pem")


def test_off_with_files_is_off_so_that_one_setting_switches() -> None:
    assert tls_settings("off", "ca.pem", "cert.pem", "key.pem").mode is TlsMode.OFF


@pytest.mark.parametrize("mode", [*TlsMode])
def test_a_key_in_place_of_its_path_is_refused_unseen(mode: TlsMode) -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIGHAgEA\n-----END PRIVATE KEY-----\n"
    with pytest.raises(InvalidTls, match="DLOG_TLS_KEY is a key or a certificate") as caught:
        tls_settings(mode, "ca.pem", "cert.pem", key)
    assert "MIGHAgEA" not in str(caught.value)


@pytest.mark.parametrize("missing", ["ca", "cert", "key"])
def test_a_file_that_the_mode_needs_is_named(missing: str) -> None:
    files = {name: f"{name}.pem" for name in ("ca", "cert", "key") if name != missing}
    with pytest.raises(InvalidTls, match=f"DLOG_TLS=required needs DLOG_TLS_{missing.upper()}"):
        tls_settings("required", **files)


def test_a_mode_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(InvalidTls, match="'yes' means nothing; say one of off, optional, required"):
        tls_settings("yes")


def test_kinds_of_names_count_in_the_order_in_which_they_are_given() -> None:
    found = tls_settings("required", "a", "b", "c", "cn, URI")
    assert found.identity == (NameKind.CN, NameKind.URI)
    with pytest.raises(InvalidTls, match="DLOG_TLS_IDENTITY has 'email'; name some of uri, dns"):
        tls_settings("required", "a", "b", "c", "email")


def test_the_settings_are_values() -> None:
    assert TlsSettings() == OFF
