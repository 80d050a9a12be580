"""``dlog access``: what operators type, and what they are told."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dlog.cli.app import app
from ledger.cluster import make_namespace
from ledger.metastore import open_store
from tests.certificates import certificate, put


@pytest.fixture(autouse=True)
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    uri = (tmp_path / "metadata").as_uri()

    async def make() -> None:
        store = await open_store(uri)
        await make_namespace(store)
        await store.close()

    asyncio.run(make())
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DLOG_URI", uri)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("DLOG_AUDIT", "off")  # there are no bookies
    return uri


def access(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["access", *arguments], prog_name="dlog")
    assert result.exit_code == code, result.output + result.stderr
    return result


def test_what_is_granted_is_listed_and_checked_until_it_is_revoked() -> None:
    assert "nothing is granted" in access("list").stderr
    granted = access("grant", "cn:billing", "writer", "billing/*")
    assert granted.stderr == "dlog: granted: cn:billing is writer of billing/*\n"
    assert "granted already" in access("grant", "cn:billing", "writer", "billing/*").stderr
    access("grant", "cn:alice", "operator")
    listed = json.loads(access("list", "--json").stdout)
    assert listed["grants"] == [
        {"who": "cn:alice", "role": "operator", "logs": "*"},
        {"who": "cn:billing", "role": "writer", "logs": "billing/*"},
    ]
    assert "@" in listed["changed_by"], "user and host, without a certificate"
    assert listed["changed_ms"] > 0
    shown = access("list")
    assert [line.split() for line in shown.stdout.splitlines()][1:] == [
        ["cn:alice", "operator", "*"],
        ["cn:billing", "writer", "billing/*"],
    ]
    assert "changed by " in shown.stderr
    may = json.loads(access("check", "cn:billing", "billing/a", "--json").stdout)
    assert {action for action, by in may.items() if by} == {"read", "add", "recover"}
    assert may["add"] == {"who": "cn:billing", "role": "writer", "logs": "billing/*"}
    assert "cn:alice is operator" in access("check", "cn:alice").stdout
    assert not any(json.loads(access("check", "cn:billing", "--json").stdout).values())
    repair = json.loads(access("check", "uri:dlog:bookie:b1", "any", "--json").stdout)
    assert {action for action, by in repair.items() if by} == {"read", "recover", "list"}
    revoked = access("revoke", "cn:billing", "writer", "billing/*", "--json")
    assert json.loads(revoked.stdout)["changed"]
    gone = access("revoke", "cn:billing", "writer", "billing/*", code=1)
    assert "there is no grant that cn:billing is writer of billing/*" in gone.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["cn:a", "owner", "x"], "'owner' is no role; say one of reader, writer, bookie, operator"),
        (["alice", "reader", "x"], "say who as KIND:NAME"),
        (["cn:a", "reader"], "say which log"),
        (["cn:a", "bookie", "x"], "bookie is a role of the whole cluster"),
    ],
)
def test_a_grant_that_means_nothing_is_refused_with_what_to_say_instead(
    arguments: list[str], reason: str
) -> None:
    said = " ".join(access("grant", *arguments, code=2).stderr.replace("│", " ").split())
    assert reason in said
    assert "say who as KIND:NAME" in " ".join(
        access("check", "alice", code=2).stderr.replace("│", " ").split()
    )


def test_who_has_a_certificate_is_named_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = put(tmp_path / "tls", certificate("alice"))
    monkeypatch.setenv("DLOG_TLS", "required")
    for name in ("ca", "cert", "key"):
        monkeypatch.setenv(f"DLOG_TLS_{name.upper()}", getattr(tls, name))
    access("grant", "cn:alice", "operator")
    assert json.loads(access("list", "--json").stdout)["changed_by"] == "cn:alice"
