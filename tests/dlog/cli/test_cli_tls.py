"""``dlog tls``: what operators type to have certificates, and what they are told."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dlog.cli.app import app
from dlog.config import load
from ledger.options import VARIABLES
from ledger.security.certificates import Security
from ledger.security.names import why_not_bookie


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def tls(*arguments: object, code: int = 0) -> Result:
    words = ["tls", *map(str, arguments)]
    result = CliRunner().invoke(app, words, prog_name="dlog")
    assert result.exit_code == code, result.output + result.stderr
    return result


def said(result: Result) -> str:
    return " ".join(result.stderr.replace("│", " ").split())


def test_what_is_printed_put_into_the_environment_is_all_that_a_process_needs(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = json.loads(tls("init", "--name", "orders", "--json").stdout)
    assert made["cert"] == str(home / ".dlog" / "tls" / "ca.pem")
    printed = tls("issue", "b1", "--bookie", "b1", "--host", "10.0.0.7", "--host", "b1.example")
    lines = [line.removeprefix("export ") for line in printed.stdout.splitlines()]
    for name, _, value in (line.partition("=") for line in lines):
        monkeypatch.setenv(name, value)
    security = Security.of(load().secured, serves=True)
    assert security is not None
    assert why_not_bookie(security.certificate, "b1", "anywhere") is None
    assert set(security.certificate.ips + security.certificate.dns) == {"10.0.0.7", "b1.example"}
    for path in (home / ".dlog" / "tls").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path


def test_what_a_certificate_says_is_shown_and_no_key_is(home: Path) -> None:
    tls("init", "--dir", home, "--name", "orders")
    tls("issue", "app", "--dir", home, "--uri", "spiffe://example.org/app", "--days", 3)
    shown = tls("show", home / "app.pem").stdout
    assert "CN=app" in shown
    assert "CN=orders" in shown
    assert "URI:spiffe://example.org/app" in shown
    assert "in 2 days" in shown
    (facts,) = json.loads(tls("show", home / "app.pem", "--json").stdout)
    assert facts["alternative_names"] == ["URI:spiffe://example.org/app"]
    assert "PRIVATE" not in shown
    no_certificate = tls("show", home / "app-key.pem", code=1)
    assert "app-key.pem: there is no certificate in it (PEM)" in no_certificate.stderr
    assert (home / "app-key.pem").read_text().splitlines()[1] not in no_certificate.stderr


def test_nothing_is_written_over(home: Path) -> None:
    tls("init", "--dir", home)
    tls("issue", "app", "--dir", home)
    before = {path: path.read_bytes() for path in home.glob("*.pem")}
    for again in (("init", "--dir", home), ("issue", "app", "--dir", home)):
        assert "it is there already; nothing is written over" in tls(*again, code=1).stderr
    assert {path: path.read_bytes() for path in home.glob("*.pem")} == before


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (
            ["issue", "app"],
            1,
            "no authority is there; make an authority there with 'dlog tls init'",
        ),
        (["show", "/no/such.pem"], 1, "/no/such.pem: No such file or directory"),
        (["show"], 2, "Missing argument"),
        (["issue"], 2, "Missing argument"),
        (["init", "--days", "0"], 2, "should be greater than or equal to 0.0001"),
        (["init", "--days", "40000"], 2, "should be less than or equal to 36500"),
        (["init", "--days", "soon"], 2, "should be a valid number"),
    ],
)
def test_what_cannot_be_done_is_refused_with_why(
    arguments: list[str], code: int, reason: str
) -> None:
    assert reason in said(tls(*arguments, code=code))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["../outside"], "give the certificate another name"),
        (["ca"], "give the certificate another name"),
        ([".hidden"], "give the certificate another name"),
        (["app", "--uri", "spiffe://exämple.org/app"], "it cannot be issued"),
        (["app", "--host", "bö.example.org"], "it cannot be issued"),
    ],
)
def test_a_certificate_that_cannot_be_is_not_issued(
    home: Path, arguments: list[str], reason: str
) -> None:
    tls("init", "--dir", home / "tls")
    before = sorted(home.rglob("*"))
    assert reason in tls("issue", *arguments, "--dir", home / "tls", code=1).stderr
    assert sorted(home.rglob("*")) == before
