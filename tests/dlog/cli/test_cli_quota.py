"""``dlog quota``: what operators type, and what they are told."""

import json
from functools import partial

import pytest

from tests.dlog.cli.cli_shell import command, unwrapped

pytestmark = pytest.mark.usefixtures("without_bookies")
quota = partial(command, "quota")


def test_what_is_set_is_listed_until_it_is_removed() -> None:
    assert "there are no quotas" in quota("list").stderr
    said = quota("set", "logs", "billing/*", "--append-bytes", "20M", "--read-requests", "200")
    assert said.stderr == "dlog: set: quota of logs billing/*\n"
    again = quota("set", "logs", "billing/*", "--append-bytes", "20M", "--read-requests", "200")
    assert "set already" in again.stderr
    quota("set", "identity", "cn:report", "--read-bytes", "1M", "--append-entries", "5")
    listed = json.loads(quota("list", "--json").stdout)
    assert listed["quotas"] == [
        {
            "subject": "identity",
            "name": "cn:report",
            "append_bytes_s": 0,
            "append_entries_s": 5,
            "read_bytes_s": 1024 * 1024,
            "read_requests_s": 0,
        },
        {
            "subject": "logs",
            "name": "billing/*",
            "append_bytes_s": 20 * 1024 * 1024,
            "append_entries_s": 0,
            "read_bytes_s": 0,
            "read_requests_s": 200,
        },
    ]
    assert "@" in listed["changed_by"]
    shown = quota("list")
    assert shown.stdout.splitlines()[1].split()[:3] == ["identity", "cn:report", "-"]
    assert "changed by " in shown.stderr
    removed = json.loads(quota("remove", "logs", "billing/*", "--json").stdout)
    assert removed == {"subject": "logs", "name": "billing/*", "removed": True}
    assert (
        "there is no quota of logs billing/*" in quota("remove", "logs", "billing/*", code=1).stderr
    )


def test_a_quota_is_set_as_a_whole() -> None:
    quota("set", "logs", "a", "--append-bytes", "20M")
    quota("set", "logs", "a", "--read-bytes", "1M")
    (one,) = json.loads(quota("list", "--json").stdout)["quotas"]
    assert (one["append_bytes_s"], one["read_bytes_s"]) == (0, 1024 * 1024)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["set", "log", "a", "--read-requests", "1"], "use one of identity, logs"),
        (["remove", "user", "a"], "use one of identity, logs"),
        (["set", "logs", "a"], "nothing is limited"),
        (["set", "logs", "a", "--append-bytes", "1K"], "give at least 65536"),
        (["set", "logs", "a", "--append-bytes", "0"], "Invalid value"),
        (["set", "identity", "alice", "--read-requests", "1"], "say who as KIND:NAME"),
    ],
)
def test_what_means_nothing_is_a_usage_error(arguments: list[str], reason: str) -> None:
    assert reason in unwrapped(quota(*arguments, code=2).stderr)
