"""``dlog kafka``: topics at the shell, and what `start` refuses."""

from collections.abc import Iterator

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
        (("topic", "create", "t", "--config", "retention.ms"), "is not NAME=VALUE"),
        (("topic", "create", "t", "--log", "a", "--partitions", "2"), "without --partitions"),
    ],
)
def test_a_command_line_that_is_wrong_is_refused(
    shell: CliShell, arguments: tuple[str, ...], reason: str
) -> None:
    assert reason in shell.refused("kafka", *arguments, code=2)
