"""What a bookie is started with: one table of options for every way to start one."""

from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bookie.config import BookieConfig
from bookie.errors import InvalidSetting
from bookie.start_options import (
    DIE_WITH_PARENT,
    METRICS_PORT,
    OF_THE_PROCESS,
    OPTIONS,
    Given,
    config_of,
    program,
)
from dlog.cli.app import app
from dlog.cli.bookie import app as dlog_bookie

MIB = 1024 * 1024
DEFAULTS = BookieConfig(uri="memory://x", directory=Path("d"))
LEAST = ("--uri=memory://x", "--dir=d")


def configured(*options: str) -> BookieConfig:
    """Return the configuration that a bookie is started with by *options*."""
    made: list[BookieConfig] = []
    result = CliRunner().invoke(program(lambda given: made.append(config_of(given))), list(options))
    assert result.exit_code == 0, result.output
    return made[0]


def refused(*options: str) -> str:
    """Return what is said of *options*, which are refused with status 2."""
    result = CliRunner().invoke(program(lambda given: print(config_of(given))), [*options])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return " ".join(result.stderr.replace("│", " ").split())


def test_without_options_a_bookie_has_the_defaults_of_its_configuration() -> None:
    assert configured(*LEAST) == DEFAULTS


def test_each_option_sets_its_field_and_no_other() -> None:
    numbers = {
        "--port": (1, 1), "--operator-port": (2, 2), "--unmade-ledgers": (5, 5),
        "--disk-warn": (0.5, 0.5), "--disk-high": (0.96, 0.96), "--disk-low": (0.4, 0.4),
        "--disk-reserve": (7, 7 * MIB),
        "--entry-log-size": ("128M", 128 * MIB), "--gc-interval": (1.5, 1.5),
        "--eviction-interval": (4, 4.0), "--eviction-pause": (6, 6.0),
        "--evicted-share": (0.7, 0.7),
        "--untraced-share": (0.3, 0.3), "--minor-interval": (2, 2.0), "--major-interval": (3, 3.0),
        "--minor-threshold": (0, 0.0), "--major-threshold": (0.2, 0.2),
        "--compaction-rate": (0.5, MIB / 2),
        "--connections": (8, 8), "--connections-per-address": (9, 9), "--strangers": (10, 10),
        "--pending-handshakes": (10, 10), "--reads-per-client": (11, 11),
        "--handshake-timeout": (1.5, 1.5), "--questions-per-client": (11, 11),
        "--slow-client-timeout": (12, 12.0), "--id-prefix": ("b", "b"),
    }  # fmt: skip
    words = {
        "--uri": ("file:///x", "file:///x"), "--dir": ("e", Path("e")),
        "--journal-dir": ("j", (Path("j"),)), "--ledger-dir": ("l", (Path("l"),)),
        "--host": ("h", "h"), "--advertise": ("a", "a"), "--id": ("b", "b"),
        "--bookie": ("b", "b"), "--rack": ("r", "r"),
    }  # fmt: skip
    values: dict[str, tuple[object, object]] = {**numbers, **words}
    options = [option for option in OPTIONS if option.field not in OF_THE_PROCESS]
    assert {flag for option in options for flag in option.flags} == set(values)
    for option in options:
        for flag in option.flags:
            given, meant = values[flag]
            config = configured(*(each for each in LEAST if flag not in each), f"{flag}={given}")
            changed = [
                other.field
                for other in options
                if value_of(config, other.field) != value_of(DEFAULTS, other.field)
            ]
            assert changed == [option.field]
            assert value_of(config, option.field) == meant


def value_of(config: BookieConfig, field: str) -> Any:
    return reduce(getattr, field.split("."), config)


def test_directories_are_kept_in_the_order_in_which_they_are_given() -> None:
    config = configured(*LEAST, "--journal-dir=b", "--journal-dir=a", "--ledger-dir=c")
    assert config.journal_directories == (Path("b"), Path("a"))
    assert config.ledger_directories == (Path("c"),)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--disk-warn=0", "--disk-warn: give a share above 0"),
        ("--disk-high=nan", "--disk-high: nan: use a share as 0.95 or 95%"),
        ("--gc-interval=nan", "--gc-interval: nan: use seconds, or 250ms"),
        ("--gc-interval=-1", "--gc-interval: -1: use seconds"),
        ("--dir=", "--dir: it is empty"),
        ("--entry-log-size=1", "--entry-log-size: 1: use bytes"),
        ("--disk-low=0.97", "--disk-low: give at most 0.95"),
        ("--disk-reserve=-1", "--disk-reserve: -1: use MiB"),
        ("--minor-threshold=1", "--minor-threshold: a log that is all live cannot shrink"),
        ("--unmade-ledgers=-1", "--unmade-ledgers: give the number of ledgers"),
        ("--port=65536", "--port: a port is a number from 0 to 65535"),
        ("--host=0.0.0.0", "say what to advertise"),
        ("--disk-reserve=much", "--disk-reserve"),
        ("--no-such-option=1", "--no-such-option"),
    ],
)
def test_what_the_configuration_refuses_is_a_wrong_command_line(option: str, sentence: str) -> None:
    said = refused(*LEAST, option)
    assert sentence in said.replace("'", "")
    assert "Traceback" not in said


def test_a_bookie_needs_a_namespace_and_a_directory() -> None:
    assert "--uri" in refused("--dir=d")
    assert "--dir" in refused("--uri=memory://x")


def test_the_help_shows_the_defaults_that_count() -> None:
    shown = " ".join(help_of(program(nothing)).replace("│", " ").split())
    for default in ("127.0.0.1", "0.95", "512M", "15m", "1d", "32M"):
        assert f"[default: {default}]" in shown


def test_every_way_to_start_a_bookie_has_the_same_help() -> None:
    alone = help_of(program(nothing))
    assert alone == help_of(program(dlog_bookie.start))
    below_dlog = help_of(app, "bookie", "start")
    assert alone.partition("Run one")[2] == below_dlog.partition("Run one")[2]
    assert "--rack" in alone


def help_of(app: typer.Typer, *command: str) -> str:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0, result.output
    return result.output


def nothing(_given: Given) -> None:
    """Run no bookie."""


def test_dlog_starts_a_bookie_in_the_namespace_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[BookieConfig, bool]] = []
    monkeypatch.setattr(
        "bookie.command.start",
        lambda given: made.append((config_of(given), given[DIE_WITH_PARENT])),
    )
    monkeypatch.setenv("DLOG_URI", "zk://z:1/configured")
    options = ["bookie", "start", "--dir=d", "--die-with-parent"]
    for more in ([], ["--uri=memory://x"]):
        result = CliRunner().invoke(app, [*options, *more])
        assert result.exit_code == 0, result.output
    assert [config.uri for config, _ in made] == ["zk://z:1/configured", "memory://x"]
    assert all(parent for _, parent in made)


def test_a_bookie_without_dlog_looks_for_its_namespace_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DLOG_URI", raising=False)
    assert "name the namespace of the cluster" in refused("--dir=d")
    monkeypatch.setenv("DLOG_URI", "zk://z:1/configured")
    assert configured("--dir=d").uri == "zk://z:1/configured"
    assert configured("--dir=d", "--uri=memory://x").uri == "memory://x"


def test_a_port_for_metrics_is_one_and_repair_needs_the_next() -> None:
    configured(*LEAST, "--metrics-port=65535")
    configured(*LEAST, "--metrics-port=65534", "--autorecovery")
    assert "65536 is not a port from 0 to 65535" in refused(*LEAST, "--metrics-port=65536")
    said = refused(*LEAST, "--metrics-port=65535", "--autorecovery")
    assert "65535 is not a port from 0 to 65534; with --autorecovery the next one is needed" in said


def test_the_port_for_metrics_may_come_from_the_environment() -> None:
    def given_port(*options: str) -> object:
        seen: list[object] = []
        one = program(lambda given: seen.append(given[METRICS_PORT]))
        environment = {"DLOG_METRICS": "9100"}
        assert CliRunner(env=environment).invoke(one, [*LEAST, *options]).exit_code == 0
        return seen[0]

    assert given_port() == 9100
    assert given_port("--metrics-port=9200") == 9200


@pytest.mark.parametrize(
    ("given", "clients", "operators"),
    [
        ("app-1", "app-1:3181", "app-1:4000"),
        ("10.0.0.5:13181", "10.0.0.5:13181", "10.0.0.5:4000"),
        ("::1", "[::1]:3181", "[::1]:4000"),
        ("[::1]:13181", "[::1]:13181", "[::1]:4000"),
    ],
)
def test_a_port_that_is_mapped_is_advertised(given: str, clients: str, operators: str) -> None:
    config = BookieConfig(uri="memory://x", directory=Path("d"), advertise=given)
    assert (config.address(3181), config.operator_address(4000)) == (clients, operators)


@pytest.mark.parametrize("given", ["a b", "http://app-1", "a:b", "a:0", "a:65536", "-a", "[zz]:1"])
def test_what_cannot_be_an_address_is_not_advertised(given: str) -> None:
    with pytest.raises(InvalidSetting, match="advertise cannot be"):
        BookieConfig(uri="memory://x", directory=Path("d"), advertise=given)
