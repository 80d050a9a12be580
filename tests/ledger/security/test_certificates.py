"""Files of TLS: what is wrong with them is said when a process starts; renewed ones are used."""

import asyncio
import ssl
import time
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from ledger.errors import CertificateUnusable
from ledger.metering.declaration import Exposed, Value
from ledger.security import certificates
from ledger.security.certificates import Security
from ledger.security.metrics import METRICS
from ledger.security.settings import TlsMode, TlsSettings
from tests.certificates import authority, certificate, put


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def renewing(settings: TlsSettings, clock: Clock) -> Security:
    return Security(settings, look_s=1.0, clock=clock)


def exchange(new: TlsSettings, old: TlsSettings, name: str) -> None:
    Path(getattr(new, name)).replace(getattr(old, name))


@pytest.mark.parametrize("name", ["ca", "cert", "key"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    settings = put(tmp_path, certificate("writer"))
    (tmp_path / f"{name}.pem").unlink()
    with pytest.raises(CertificateUnusable, match=f"{name}.pem: No such file"):
        Security(settings)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ca", "there is no certificate in it"),
        ("cert", "there is no certificate in it"),
        ("key", "there is no private key in it"),
    ],
)
def test_a_file_with_something_else_in_it_is_named(tmp_path: Path, name: str, reason: str) -> None:
    settings = put(tmp_path, certificate("writer"))
    (tmp_path / f"{name}.pem").write_text("nothing of use\n")
    with pytest.raises(CertificateUnusable, match=f"{name}.pem: {reason}"):
        Security(settings)


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    settings = put(tmp_path, replace(certificate("writer"), key=certificate("reader").key))
    with pytest.raises(CertificateUnusable, match=r"key.pem: it is not the key of the certificate"):
        Security(settings)


def test_a_damaged_key_is_refused_and_not_shown(tmp_path: Path) -> None:
    good = certificate("writer").key
    settings = put(tmp_path, replace(certificate("writer"), key=good[:60] + b"!!" + good[62:]))
    with pytest.raises(CertificateUnusable) as refused:
        Security(settings)
    lines = good.decode().splitlines()[1:-1]
    assert not any(line[10:40] in f"{refused.value!r} {refused.value}" for line in lines)


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_a_password(tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(certificate("writer").key, None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    settings = put(tmp_path, replace(certificate("writer"), key=encrypted))
    with pytest.raises(CertificateUnusable, match=r"key.pem: the key is encrypted"):
        Security(settings)


def test_a_certificate_that_has_expired_is_refused(tmp_path: Path) -> None:
    settings = put(tmp_path, certificate("old", days=-1))
    with pytest.raises(CertificateUnusable, match=r"cert.pem: it has expired"):
        Security(settings)


def test_a_certificate_that_is_not_valid_yet_is_refused(tmp_path: Path) -> None:
    settings = put(tmp_path, certificate("early", begins_days=1.0, days=2.0))
    with pytest.raises(
        CertificateUnusable, match=r"cert.pem: it is not valid yet; check the clock"
    ):
        Security(settings)


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    settings = put(tmp_path, certificate("writer", by="other"))
    with pytest.raises(CertificateUnusable, match="the authority that signed it is not in"):
        Security(settings)


def test_a_key_that_others_may_read_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = put(tmp_path, certificate("writer"))
    (tmp_path / "key.pem").chmod(0o644)
    Security(settings)
    assert "private_key_readable_by_others" in caplog.text


def test_nothing_that_is_kept_shows_the_key(tmp_path: Path) -> None:
    settings = put(tmp_path, certificate("writer"))
    security = Security(settings)
    assert "PRIVATE" not in f"{security!r} {settings!r} {security.pem()!r} {security._loaded!r}"
    assert "PRIVATE" not in repr(certificate("writer"))


def test_renewed_files_are_used_from_the_next_look_on(tmp_path: Path) -> None:
    clock = Clock()
    security = renewing(put(tmp_path, certificate("writer")), clock)
    before = security.client()
    put(tmp_path, certificate("renewed", hosts=("renewed.example",)))
    assert security.client() is before, "files are not looked at with each connection"
    clock.now = 1.0
    assert security.client() is not before
    assert security.certificate.dns == ("renewed.example",)
    assert (security.generation, security.failures) == (1, 0)


def test_half_a_renewal_keeps_what_there_was_until_the_rest_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    settings = put(tmp_path, certificate("writer"))
    security = renewing(settings, clock)
    renewed = certificate("renewed", hosts=("renewed.example",))
    Path(settings.cert).write_bytes(renewed.cert)
    for second in (1.0, 2.0, 3.0):
        clock.now = second
        security.look()
    assert (security.generation, security.failures) == (0, 1)
    assert not security.certificate.dns
    assert caplog.text.count("tls_files_not_used") == 1
    Path(settings.key).write_bytes(renewed.key)
    clock.now = 4.0
    security.look()
    assert security.certificate.dns == ("renewed.example",)


def test_who_is_made_while_files_are_exchanged_uses_what_this_process_used_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    settings = put(tmp_path, certificate("writer"))
    renewing(settings, clock)
    renewed = certificate("renewed", hosts=("renewed.example",))
    Path(settings.cert).write_bytes(renewed.cert)
    second = renewing(settings, clock)
    assert not second.certificate.dns
    assert second.failures == 1
    assert "tls_files_not_used" in caplog.text
    Path(settings.key).write_bytes(renewed.key)
    clock.now = 1.0
    second.look()
    assert second.certificate.dns == ("renewed.example",)


def test_what_was_used_before_does_not_help_once_it_has_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = put(tmp_path, certificate("writer", days=1.0))
    Security(settings)
    (tmp_path / "key.pem").write_bytes(certificate("renewed").key)
    in_two_days = time.time() + 2 * 86_400
    monkeypatch.setattr("ledger.security.certificates.time.time", lambda: in_two_days)
    with pytest.raises(CertificateUnusable):
        Security(settings)


@pytest.mark.parametrize("last", ["ca", "cert", "key"])
async def test_who_starts_while_files_are_exchanged_waits_for_the_last_of_them(
    tmp_path: Path, last: str
) -> None:
    new = put(tmp_path / "new", certificate("writer", by="other"), ca=authority("other"))
    old = put(tmp_path / "old", certificate("writer"))
    for name in {"ca", "cert", "key"} - {last}:
        exchange(new, old, name)
    starting = asyncio.create_task(Security.settled(old))
    await asyncio.sleep(0)
    assert not starting.done()
    exchange(new, old, last)
    security = await starting
    assert security is not None
    assert (security.generation, security.failures) == (0, 0)


async def test_who_starts_with_files_that_do_not_fit_is_refused_after_a_while(
    tmp_path: Path,
) -> None:
    settings = put(tmp_path, replace(certificate("writer"), key=certificate("reader").key))
    with pytest.raises(CertificateUnusable, match=r"key.pem: it is not the key"):
        await Security.settled(settings, within_s=0.0)


@pytest.mark.parametrize("days", [-1.0, 2.0])
async def test_who_starts_with_a_certificate_that_no_other_file_can_mend_does_not_wait(
    tmp_path: Path, days: float
) -> None:
    settings = put(tmp_path, certificate("writer", begins_days=days - 1.0, days=days))
    starting = asyncio.create_task(Security.settled(settings))
    await asyncio.sleep(0)
    with pytest.raises(CertificateUnusable, match=r"it has expired|it is not valid yet"):
        starting.result()


def test_files_that_are_exchanged_while_they_are_read_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = put(tmp_path, certificate("writer"))
    renewed = certificate("renewed", hosts=("renewed.example",))
    read = certificates._read

    def read_and_exchange(path: str) -> bytes:
        found = read(path)
        if path == settings.key:
            monkeypatch.setattr(certificates, "_read", read)
            put(tmp_path, renewed)
        return found

    monkeypatch.setattr(certificates, "_read", read_and_exchange)
    pem = Security(settings).pem()
    assert (pem.cert, pem.key) == (renewed.cert, renewed.key)


def test_a_library_that_keeps_a_context_gets_it_while_files_are_exchanged(tmp_path: Path) -> None:
    settings = put(tmp_path, certificate("writer"))
    security = Security(settings)
    Path(settings.cert).write_bytes(certificate("renewed").cert)
    assert security.lasting_server().verify_mode is ssl.CERT_NONE


def test_files_that_vanish_end_nothing(tmp_path: Path) -> None:
    clock = Clock()
    security = renewing(put(tmp_path, certificate("writer")), clock)
    before = security.server()
    (tmp_path / "cert.pem").unlink()
    clock.now = 1.0
    assert security.server() is before


def test_files_that_vanish_before_the_first_connection_end_nothing(tmp_path: Path) -> None:
    security = renewing(put(tmp_path, certificate("writer")), Clock())
    for path in tmp_path.iterdir():
        path.unlink()
    security.client()
    security.server()
    assert security.open_server() is not security.server()


def test_the_end_of_our_certificate_is_known(tmp_path: Path) -> None:
    security = Security(put(tmp_path, certificate("writer", days=1.0)))
    assert abs(security.certificate.expires_at - time.time() - 86_400) < 3600


def test_metrics_are_of_the_files_that_are_there_whether_anybody_connects_or_not(
    tmp_path: Path,
) -> None:
    clock, exposed = Clock(), Exposed()
    exposed.add(METRICS, renewing(put(tmp_path, certificate("writer", days=90.0)), clock))

    def shown() -> tuple[Value, ...]:
        return tuple(value for _, value in exposed.read())

    first, *_ = shown()
    put(tmp_path, certificate("renewed", days=5.0))
    clock.now = 1.0
    expires_at, renewals, failures = shown()
    assert isinstance(first, float)
    assert isinstance(expires_at, float)
    assert 84 < (first - expires_at) / 86_400 < 86
    assert (renewals, failures) == (1, 0)
    (tmp_path / "key.pem").write_text("half a file")
    clock.now = 2.0
    assert shown() == (expires_at, 1, 1)


def test_off_has_no_files(tmp_path: Path) -> None:
    assert Security.of(TlsSettings()) is None
    settings = put(tmp_path, certificate("writer"), mode=TlsMode.OFF, ca=authority("other"))
    assert Security.of(settings) is None
