"""The small authority: files that nobody else reads, and certificates that do."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from dlog.tls.authority import CertificateRequest
from dlog.tls.files import TlsFileError, init, issue_to, renew, show
from ledger.errors import CertificateUnusable
from ledger.security.certificates import Security
from ledger.security.names import bookies_named
from ledger.security.settings import TlsMode, TlsSettings


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_what_is_issued_can_be_used_at_both_ends_and_is_private(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "tls"
    ca = init(directory, "orders", days=10)
    wanted = CertificateRequest(
        name="b1", bookie="b1", hosts=("10.0.0.7", "b1.example"), uris=("spiffe://d/x",)
    )
    pair = issue_to(directory, "b1", wanted)
    assert mode_of(directory) == 0o700
    assert [mode_of(path) for path in sorted(directory.iterdir())] == [0o600] * 4
    settings = TlsSettings(
        mode=TlsMode.REQUIRED, ca=str(ca.cert), cert=str(pair.cert), key=str(pair.key)
    )
    certificate = Security(settings, serves=True).certificate
    assert bookies_named(certificate) == ("b1",)
    assert (certificate.ips, certificate.dns) == (("10.0.0.7",), ("b1.example",))


def test_what_nobody_finds_is_for_clients_alone(tmp_path: Path) -> None:
    ca = init(tmp_path, "orders", days=10)
    for wanted, serves in (
        (CertificateRequest(name="writer"), False),
        (CertificateRequest(name="uri", uris=("spiffe://d/x",)), False),
        (CertificateRequest(name="leader", hosts=("10.0.0.8",)), True),
        (CertificateRequest(name="b1", bookie="b1"), True),
    ):
        pair = issue_to(tmp_path, wanted.name, wanted)
        settings = TlsSettings(
            mode=TlsMode.REQUIRED, ca=str(ca.cert), cert=str(pair.cert), key=str(pair.key)
        )
        Security(settings)
        if serves:
            Security(settings, serves=True)
        else:
            with pytest.raises(CertificateUnusable):
                Security(settings, serves=True)
        [found] = x509.load_pem_x509_certificates(pair.cert.read_bytes())
        assert found.not_valid_after_utc - datetime.now(UTC) < timedelta(days=90)


def test_a_renewed_certificate_has_the_same_names_and_another_key(tmp_path: Path) -> None:
    ca = init(tmp_path, "orders", days=100)
    names = CertificateRequest(
        name="b1", bookie="rack 1/b1", hosts=("10.0.0.7", "b1.example"), uris=("spiffe://d/x",)
    )
    pair = issue_to(tmp_path, "b1", replace(names, days=1))
    settings = TlsSettings(
        mode=TlsMode.REQUIRED, ca=str(ca.cert), cert=str(pair.cert), key=str(pair.key)
    )
    security = Security(settings, serves=True, look_s=0.0)
    before, key = security.certificate, pair.key.read_bytes()
    assert renew(tmp_path, "b1", days=90) == pair
    security.look()  # what runs takes it
    after = security.certificate
    assert (security.generation, security.failures) == (1, 0)
    assert replace(after, expires_at=0.0, begins_at=0.0) == replace(
        before, expires_at=0.0, begins_at=0.0
    )
    assert after.expires_at > before.expires_at + 88 * 86_400
    assert pair.key.read_bytes() != key
    assert {mode_of(each) for each in tmp_path.iterdir()} == {0o600}
    assert len(list(tmp_path.iterdir())) == 4, "nothing is left beside them"
    issue_to(tmp_path, "writer", CertificateRequest(name="writer"))
    renew(tmp_path, "writer", days=1)
    with pytest.raises(TlsFileError, match="No such file"):
        renew(tmp_path, "nobody", days=1)
    with pytest.raises(TlsFileError, match="another name"):
        renew(tmp_path, "ca", days=1)


def test_what_a_certificate_says_is_shown(tmp_path: Path) -> None:
    init(tmp_path, "orders", days=10)
    pair = issue_to(tmp_path, "b1", CertificateRequest(name="b1", bookie="b1", hosts=("10.0.0.7",)))
    (shown,) = show(pair.cert)
    assert (shown.name, shown.issuer) == ("CN=b1", "CN=orders")
    assert shown.alternative_names == ("URI:dlog:bookie:b1", "IP:10.0.0.7")


def test_nothing_is_written_over(tmp_path: Path) -> None:
    before = init(tmp_path, "orders", days=10).key.read_bytes()
    issue_to(tmp_path, "b1", CertificateRequest(name="b1"))
    with pytest.raises(TlsFileError, match="it is there already; nothing is written over"):
        init(tmp_path, "orders", days=10)
    with pytest.raises(TlsFileError, match="it is there already"):
        issue_to(tmp_path, "b1", CertificateRequest(name="b1"))
    assert (tmp_path / "ca-key.pem").read_bytes() == before


@pytest.mark.parametrize("name", ["ca", "../b1", ".b1"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    init(tmp_path, "orders", days=10)
    with pytest.raises(TlsFileError, match="give the certificate another name"):
        issue_to(tmp_path, name, CertificateRequest(name="b1"))


def test_without_an_authority_it_is_said_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(TlsFileError, match="no authority is there; make an authority there with"):
        issue_to(tmp_path, "b1", CertificateRequest(name="b1"))


def test_a_key_is_no_certificate_and_is_not_shown(tmp_path: Path) -> None:
    pair = init(tmp_path, "orders", days=10)
    with pytest.raises(TlsFileError, match=r"there is no certificate in it \(PEM\)"):
        show(pair.key)
