"""``dlog kafka``: topics at the shell, and what `start` refuses."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import dlog
from tests.dlog.cli.cli_shell import CliShell, cli_shell


@pytest.fixture(scope="module")
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        yield made


def test_a_topic_is_created_listed_and_described(shell: CliShell) -> None:
    config = "retention.ms=60000"
    said = shell.invoke(
        "kafka", "topic", "create", "orders", "--partitions", "4", "--config", config
    )
    assert "created topic orders of orders-0, orders-1, orders-2, ... (4 logs)" in said.stderr
    rows = shell.json("kafka", "topic", "list", "--prefix", "orders")
    assert rows == [{"topic": "orders", "partitions": 4, "logs": [f"orders-{i}" for i in range(4)]}]
    described = shell.json("kafka", "topic", "describe", "orders")
    assert described["partitions"][3] == {"partition": 3, "log": "orders-3", "leader": None}
    assert described["configs"]["retention.ms"] == "60000"
    assert "no gateway serves" in shell.run("kafka", "topic", "describe", "orders")


def test_logs_that_exist_are_given_a_topic(shell: CliShell) -> None:
    for name in ("shop/a", "shop/b"):
        with dlog.Log.open(name, uri=shell.uri) as log:
            log.append(b"1")
    shell.run("kafka", "topic", "create", "shop", "--log", "shop/a", "--log", "shop/b")
    (row,) = shell.json("kafka", "topic", "list", "--prefix", "shop")
    assert row["logs"] == ["shop/a", "shop/b"]


def test_a_log_with_a_name_of_a_topic_is_one(shell: CliShell) -> None:
    with dlog.Log.open("flights", uri=shell.uri) as log:
        log.append(b"1")
    (row,) = shell.json("kafka", "topic", "list", "--prefix", "flights")
    assert row == {"topic": "flights", "partitions": 1, "logs": ["flights"]}


def test_a_user_is_added_listed_given_another_password_and_removed(
    shell: CliShell, tmp_path: Path
) -> None:
    assert shell.json("kafka", "user", "list")["users"] == []
    said = shell.invoke("kafka", "user", "add", "alice", stdin="wonderland\nignored\n")
    assert "added user alice" in said.stderr
    (tmp_path / "password").write_text("looking-glass\r\n")
    file = str(tmp_path / "password")
    assert shell.json("kafka", "user", "add", "alice", "--password-file", file) == {
        "user": "alice",
        "replaced": True,
    }
    found = shell.json("kafka", "user", "list")
    assert found["users"] == ["alice"]
    assert found["changed_ms"] > 0
    assert "user:alice" in shell.run("kafka", "user", "list")
    shell.run("access", "grant", "user:alice", "writer", "orders*")
    assert shell.json("kafka", "user", "remove", "alice") == {"user": "alice", "removed": True}
    assert shell.json("kafka", "user", "list")["users"] == []
    assert "there is none of that name" in shell.refused("kafka", "user", "remove", "alice")


@pytest.mark.parametrize(
    ("name", "password", "reason"),
    [
        ("alice", "short", "8 characters or more"),
        ("alice", "", "8 characters or more"),
        ("a*", "wonderland", "a trailing '*'"),
        ("alice", "wonder\u2168land", "in two ways"),
    ],
)
def test_a_user_that_cannot_be_is_refused_and_its_password_not_shown(
    shell: CliShell, name: str, password: str, reason: str
) -> None:
    said = shell.invoke("kafka", "user", "add", name, stdin=f"{password}\n")
    assert said.exit_code == 1
    assert reason in said.stderr
    assert not password or password not in said.stdout + said.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("start", "--port0", "--scram"), "--sasl-without-tls"),
        (("start", "--port0", "--sasl-without-tls"), "by no mechanism"),
        (
            (
                *("start", "--port0", "--sasl-without-tls", "--oidc-issuer", "https://id"),
                *("--oidc-audience", "kafka", "--oidc-keys", "http://id.example.org/keys"),
            ),
            "use https",
        ),
        (
            (
                *("start", "--port0", "--sasl-without-tls", "--oidc-issuer", "https://id"),
                *("--oidc-audience", "kafka", "--oidc-keys", "/nothing/keys.json"),
            ),
            "No such file",
        ),
    ],
)
def test_a_gateway_that_cannot_authenticate_as_told_does_not_start(
    shell: CliShell, arguments: tuple[str, ...], reason: str
) -> None:
    given = ["--listen=127.0.0.1:0" if each == "--port0" else each for each in arguments]
    assert reason in shell.refused("kafka", *given)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("topic", "create", "a/b"), "use letters, digits"),
        (("topic", "create", "t", "--config", "cleanup.policy=compact"), "never compacted"),
        (("topic", "create", "t", "--log", "nothing"), "nothing"),
        (("topic", "describe", "nothing"), "there is no topic 'nothing'"),
        (("start", "--listen", "192.0.2.1:0"), "cannot listen on 192.0.2.1:0"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    shell: CliShell, arguments: tuple[str, ...], reason: str
) -> None:
    assert reason in shell.refused("kafka", *arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("start", "--listen", "9092"), "'9092' is not HOST:PORT"),
        (("start", "--advertise", "host:70000"), "'host:70000' is not HOST:PORT"),
        (("start", "--oidc-issuer", "https://id"), "--oidc-audience and --oidc-keys together"),
        (("topic", "create", "t", "--config", "retention.ms"), "is not NAME=VALUE"),
        (("topic", "create", "t", "--log", "a", "--partitions", "2"), "without --partitions"),
    ],
)
def test_a_command_line_that_is_wrong_is_refused(
    shell: CliShell, arguments: tuple[str, ...], reason: str
) -> None:
    assert reason in shell.refused("kafka", *arguments, code=2)
