"""``dlog access``: what operators type, and what they are told."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.certificates import certificate, put
from tests.dlog.cli.cli_shell import command, unwrapped

pytestmark = pytest.mark.usefixtures("without_bookies")
access = partial(command, "access")


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
        (
            ["cn:a", "owner", "x"],
            "'owner' is not a role; use one of reader, writer, bookie, operator",
        ),
        (["alice", "reader", "x"], "say who as KIND:NAME"),
        (["cn:a", "reader"], "say which log"),
        (["cn:a", "bookie", "x"], "bookie is a role of the whole cluster"),
    ],
)
def test_a_grant_that_means_nothing_is_refused_with_what_to_say_instead(
    arguments: list[str], reason: str
) -> None:
    assert reason in unwrapped(access("grant", *arguments, code=2).stderr)
    assert "say who as KIND:NAME" in unwrapped(access("check", "alice", code=2).stderr)


def test_who_has_a_certificate_is_named_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = put(tmp_path / "tls", certificate("alice"))
    monkeypatch.setenv("DLOG_TLS", "required")
    for name in ("ca", "cert", "key"):
        monkeypatch.setenv(f"DLOG_TLS_{name.upper()}", getattr(tls, name))
    access("grant", "cn:alice", "operator")
    assert json.loads(access("list", "--json").stdout)["changed_by"] == "cn:alice"


def test_only_operators_grant_once_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLOG_TLS", "required")

    def become(name: str) -> None:
        tls = put(tmp_path / name, certificate(name))
        for file in ("ca", "cert", "key"):
            monkeypatch.setenv(f"DLOG_TLS_{file.upper()}", getattr(tls, file))

    become("mallory")
    access("grant", "cn:alice", "operator")
    for words in (
        ["access", "grant", "cn:mallory", "operator"],
        ["access", "revoke", "cn:alice", "operator"],
        ["quota", "set", "logs", "*", "--read-requests", "1"],
        ["quota", "remove", "logs", "*"],
    ):
        refused = command(*words, code=1)
        assert "cn:mallory is not allowed to change" in refused.stderr
        assert "dlog access grant cn:mallory operator" in refused.stderr
    become("alice")
    access("grant", "cn:bert", "reader", "orders")
