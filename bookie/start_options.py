"""Every option that a bookie is started with, once: what it sets, what it means, how it is shown.

`python -m bookie`, the program ``bookie`` and ``dlog bookie start`` are made of this table, so they
take the same options and print the same help. Defaults are those of the configuration, and what it
refuses is a wrong command line: bounds stand there only.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bookie.config import BookieConfig
from bookie.errors import InvalidSetting
from bookie.storage.config import ENTRY_LOG_BYTES_MAX, ENTRY_LOG_BYTES_MIN, ENTRY_LOG_SHARE
from ledger.errors import CallerError
from ledger.metastore.uri import URI_VARIABLE
from ledger.options import (
    CA_HELP,
    CERT_HELP,
    HOST_DEFAULT,
    HOST_HELP,
    IDENTITY_HELP,
    KEY_HELP,
    MODE_HELP,
    PORT_HELP,
    PORT_MAX,
    PORT_VARIABLE,
    VARIABLES,
    directory,
    duration,
    share,
    size,
)
from ledger.security.settings import VARIABLE, tls_settings
from ledger.values import shown_duration, shown_size

Given = Mapping[str, Any]
"""What each option was set to, by `Option.name`."""

DIE_WITH_PARENT: Final = "die_with_parent"
AUTORECOVERY: Final = "autorecovery"
METRICS_PORT: Final = "metrics_port"
METRICS_HOST: Final = "metrics_host"
TLS: Final = ("tls", "tls_ca", "tls_cert", "tls_key", "tls_identity")
OF_THE_PROCESS: Final[Mapping[str, object]] = {
    DIE_WITH_PARENT: False,
    AUTORECOVERY: False,
    METRICS_PORT: None,
    METRICS_HOST: HOST_DEFAULT,
    **dict.fromkeys(TLS),
}
"""The options that say nothing of the bookie, but something of its process; and their defaults."""

_MIB: Final = 1024 * 1024
_DIRECTORIES: Final = "Directories: the same at every start, in the same order"
_SPACE: Final = "Disk space: with too little on any disk, the bookie is read-only"
_TLS: Final = "TLS: encryption, and certificates on both ends"
_CLIENTS: Final = "Clients: limits for each and for all; connections beyond them are closed"
_COLLECTION: Final = "Garbage collection of deleted ledgers, and compaction of entry logs"

_ABOUT: Final = """\
Run one bookie in the foreground until SIGTERM or Ctrl-C.

A bookie stores entries of ledgers, and acknowledges them once they are synced to disk. Its identity
is in its directory: restarted there, it is the same bookie with the same data. It refuses the
directory of another bookie or cluster.

Exit status: 0 after a clean stop, 1 if it could not start or its disk failed, 2 for wrong options.
"""
_EXAMPLES: Final = (
    "dlog bookie start --uri zk://zk1:2181,zk2:2181/dlog --dir /data/bookie --host 10.0.0.7",
    "dlog bookie start --dir /ssd/bookie --journal-dir /nvme0/journal --ledger-dir /disk1/ledgers",
    "bookie --uri file:///var/lib/dlog/metadata --dir /var/lib/dlog/b1 --port 3181",
)
_EPILOG: Final = "\n\n".join(["Examples:", *(f"  {line}" for line in _EXAMPLES)])


@dataclass(frozen=True, slots=True)
class OptionKind:
    """How the values of an option are read, and its default is shown."""

    parser: Callable[[object], Any]
    metavar: str
    shown: Callable[[Any], str] = str


_DURATION: Final = OptionKind(duration(), "DURATION", shown_duration)
_MEBIBYTES: Final = OptionKind(size(unit="m"), "SIZE", shown_size)
_SIZE: Final = OptionKind(size(least=_MIB), "SIZE", shown_size)
_SHARE: Final = OptionKind(share, "SHARE")
_DIRECTORY: Final = OptionKind(directory, "DIR")


@dataclass(frozen=True, slots=True)
class Option:
    flags: tuple[str, ...]
    """The first is how it is called in messages; the others mean the same."""
    field: str
    """Of `BookieConfig`, with a dot for one of a configuration in it; or of its process."""
    type: Any
    help: str
    metavar: str | None = None
    panel: str | None = None
    kind: OptionKind | None = None
    """What its values are, if typer does not know that."""
    hidden: bool = False
    variable: str | None = None
    """Of the environment, that says it if the option does not."""

    @property
    def name(self) -> str:
        return self.field.rpartition(".")[2]

    def parameter(self) -> inspect.Parameter:
        """Return it as a parameter for typer."""
        kind = self.kind
        shown = typer.Option(
            *self.flags,
            help=self.help,
            metavar=self.metavar or (None if kind is None else kind.metavar),
            rich_help_panel=self.panel,
            hidden=self.hidden,
            envvar=self.variable,
            parser=None if kind is None else kind.parser,
        )
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=self._default(),
            annotation=Annotated[self.type, shown],
        )

    def _default(self) -> object:
        if self.field in _REQUIRED:
            return inspect.Parameter.empty
        if self.field in OF_THE_PROCESS:
            return OF_THE_PROCESS[self.field]
        default: object = reduce(getattr, self.field.split("."), _DEFAULTS)
        if self.kind is not None and isinstance(default, int | float):
            return self.kind.shown(default)
        return None if default in (None, "", ()) else default


_REQUIRED: Final = ("directory",)
_DEFAULTS: Final = BookieConfig(uri="", directory=Path())

OPTIONS: Final = (
    Option(
        ("--uri",),
        "uri",
        str | None,
        "Namespace: file:///dir or zk://host:2181/root. Default: DLOG_URI, else the cluster that "
        "'dlog up' runs; for 'python -m bookie' one of the first two.",
        metavar="URI",
    ),
    Option(("--host",), "host", str, "Address to listen on."),
    Option(
        ("--port",),
        "port",
        int,
        "Port to listen on; 0: the port of the last start, or any free one at the first start.",
    ),
    Option(
        ("--operator-port",),
        "operator_port",
        int,
        "Port for operators' commands: status, garbage collection, read-only; 0: any free port. "
        "Without TLS anyone who reaches it can use them: keep clients away with a firewall.",
    ),
    Option(
        ("--advertise",),
        "advertise",
        str | None,
        "Host that clients connect to, if it differs from --host; with a port if that differs, "
        "too. Operators connect to --operator-port there.",
        metavar="HOST[:PORT]",
    ),
    Option(
        ("--id", "--bookie"),
        "bookie",
        str | None,
        "Name of the bookie, for as long as its data live. Default: the name in the directory; at "
        "the first start the host name and a random part.",
        metavar="NAME",
    ),
    Option(
        ("--id-prefix",),
        "bookie_prefix",
        str | None,
        "Start of the name that a first start creates; a random part follows, so that no name is "
        "used twice. Later starts use the name in the directory.",
        metavar="PREFIX",
    ),
    Option(("--rack",), "rack", str | None, "Rack of this bookie, for placement."),
    Option(
        ("--unmade-ledgers",),
        "unmade_ledgers_max",
        int,
        "Accept at most this many ledgers that the metadata store does not know; for tests.",
        hidden=True,
    ),
    Option(("--die-with-parent",), DIE_WITH_PARENT, bool, "Stop when the parent process ends."),
    Option(
        ("--autorecovery",),
        AUTORECOVERY,
        bool,
        "Also run an autorecovery process, as 'dlog autorecovery start' does.",
    ),
    Option(
        ("--metrics-port",),
        METRICS_PORT,
        int | None,
        f"{PORT_HELP} The process of --autorecovery uses the next port.",
        metavar="PORT",
        variable=PORT_VARIABLE,
    ),
    Option(("--metrics-host",), METRICS_HOST, str, HOST_HELP),
    Option(
        ("--tls",), TLS[0], str | None, MODE_HELP, metavar="MODE", panel=_TLS, variable=VARIABLE
    ),
    *(
        Option(
            (f"--{name.replace('_', '-')}",),
            name,
            str | None,
            says,
            metavar=metavar,
            panel=_TLS,
            variable=variable,
        )
        for name, says, metavar, variable in zip(
            TLS[1:],
            (CA_HELP, CERT_HELP, KEY_HELP, IDENTITY_HELP),
            ("FILE", "FILE", "FILE", "KINDS"),
            VARIABLES[1:],
            strict=True,
        )
    ),
    Option(
        ("--dir",),
        "directory",
        Path,
        "Main directory of this bookie; created if it does not exist. It has everything for which "
        "no other directory is named.",
        panel=_DIRECTORIES,
        kind=_DIRECTORY,
    ),
    Option(
        ("--journal-dir",),
        "journal_directories",
        list[Path] | None,
        "Directory with a journal; repeat it for several. An add is acknowledged once it is in a "
        "journal; on a disk of its own, it does not wait for other writes. Default: --dir.",
        panel=_DIRECTORIES,
        kind=_DIRECTORY,
    ),
    Option(
        ("--ledger-dir",),
        "ledger_directories",
        list[Path] | None,
        "Directory with entry logs and index; repeat it for several: ledgers are distributed by "
        "their ids. Default: --dir.",
        panel=_DIRECTORIES,
        kind=_DIRECTORY,
    ),
    Option(
        ("--disk-warn",),
        "disk_limits.warn_share",
        float,
        "Share of a disk in use above which a warning is logged.",
        panel=_SPACE,
        kind=_SHARE,
    ),
    Option(
        ("--disk-high",),
        "disk_limits.high_share",
        float,
        "Share of a disk in use above which the bookie is read-only: it serves reads, fencing and "
        "recovery, and refuses new entries.",
        panel=_SPACE,
        kind=_SHARE,
    ),
    Option(
        ("--disk-low",),
        "disk_limits.low_share",
        float,
        "Share of a disk in use below which it is writable again.",
        panel=_SPACE,
        kind=_SHARE,
    ),
    Option(
        ("--disk-reserve",),
        "disk_limits.reserve_bytes",
        int,
        "MiB (or 512M, 2G) to keep free in any case; it is writable again with twice as much.",
        panel=_SPACE,
        kind=_MEBIBYTES,
    ),
    Option(
        ("--entry-log-size",),
        "storage.entry_log_bytes_max",
        int | None,
        "Start a new entry log at this size, as 256M. Space is freed by whole entry logs: small "
        "ones hold on to less deleted data, large ones are fewer files. Default: "
        f"{ENTRY_LOG_SHARE:.1%} of the smallest disk with ledgers, from "
        f"{shown_size(ENTRY_LOG_BYTES_MIN)} to {shown_size(ENTRY_LOG_BYTES_MAX)}.",
        panel=_SPACE,
        kind=_SIZE,
    ),
    Option(
        ("--connections",),
        "clients.connections_max",
        int,
        "Connections of all clients; fewer if the process may open only fewer files.",
        metavar="NUMBER",
        panel=_CLIENTS,
    ),
    Option(
        ("--connections-per-address",),
        "clients.connections_per_address_max",
        int,
        "Connections from one address (IPv6: one /64). A process has two; allow more where many "
        "processes share an address, as behind a NAT.",
        metavar="NUMBER",
        panel=_CLIENTS,
    ),
    Option(
        ("--pending-handshakes", "--strangers"),
        "clients.pending_handshakes_max",
        int,
        "Connections before their handshake is complete; a quarter of them from one address. "
        "Beyond that the oldest is closed.",
        metavar="NUMBER",
        panel=_CLIENTS,
    ),
    Option(
        ("--handshake-timeout",),
        "clients.handshake_s_max",
        float,
        "Time in which a client must complete its handshake; TLS has the same time in addition.",
        panel=_CLIENTS,
        kind=_DURATION,
    ),
    Option(
        ("--reads-per-client", "--questions-per-client"),
        "clients.questions_per_client_max",
        int,
        "Reads, and waits for entries, that one connection may have open. Further ones are "
        "refused, and the client retries.",
        metavar="NUMBER",
        panel=_CLIENTS,
    ),
    Option(
        ("--slow-client-timeout",),
        "clients.slow_s_max",
        float,
        "Time in which a client must receive 1 MiB of its replies, or all of them.",
        panel=_CLIENTS,
        kind=_DURATION,
    ),
    Option(
        ("--gc-interval",),
        "collector.gc_interval_s",
        float,
        "Time between garbage collections, as 900 (seconds) or 15m; 0: none.",
        panel=_COLLECTION,
        kind=_DURATION,
    ),
    Option(
        ("--untraced-share",),
        "collector.untraced_share",
        float,
        "Share of its ledgers that may be deleted in a day although the metadata store lacks them "
        "without a record of their deletion.",
        panel=_COLLECTION,
        kind=_SHARE,
    ),
    Option(
        ("--eviction-interval",),
        "collector.eviction_interval_s",
        float,
        "Time between searches for copies that repair has moved elsewhere, which are then "
        "evicted; 0: none.",
        panel=_COLLECTION,
        kind=_DURATION,
    ),
    Option(
        ("--eviction-pause",),
        "collector.eviction_pause_s",
        float,
        "Time between finding such a copy and evicting it; for tests.",
        hidden=True,
        kind=_DURATION,
    ),
    Option(
        ("--evicted-share",),
        "collector.evicted_share",
        float,
        "Share of its ledgers that may be evicted in a day without an operator's approval.",
        panel=_COLLECTION,
        kind=_SHARE,
    ),
    Option(
        ("--minor-interval",),
        "collector.minor_interval_s",
        float,
        "Time between minor compactions, of entry logs with little live data; 0: none.",
        panel=_COLLECTION,
        kind=_DURATION,
    ),
    Option(
        ("--major-interval",),
        "collector.major_interval_s",
        float,
        "Time between major compactions, of all entry logs worth compacting; 0: none.",
        panel=_COLLECTION,
        kind=_DURATION,
    ),
    Option(
        ("--minor-threshold",),
        "collector.minor_share",
        float,
        "Share of live data below which a minor compaction rewrites an entry log; 0: none.",
        panel=_COLLECTION,
        kind=_SHARE,
    ),
    Option(
        ("--major-threshold",),
        "collector.major_share",
        float,
        "Share of live data below which a major compaction rewrites an entry log; 0: none.",
        panel=_COLLECTION,
        kind=_SHARE,
    ),
    Option(
        ("--compaction-rate",),
        "collector.bytes_per_s",
        float,
        "MiB (or 32M) that compaction reads and writes a second; 0: no limit.",
        panel=_COLLECTION,
        kind=_MEBIBYTES,
    ),
)


def add_start(app: typer.Typer, start: Callable[[Given], None]) -> None:
    """Add the command ``start`` to *app*; *start* gets what the options say."""

    def command(**given: object) -> None:
        start(given)

    # What typer reads; a function cannot be written with the parameters of a table.
    signature = inspect.Signature([option.parameter() for option in OPTIONS])
    command.__signature__ = signature  # type: ignore[attr-defined]
    app.command("start", help=_ABOUT, epilog=_EPILOG)(command)


def program(start: Callable[[Given], None]) -> typer.Typer:
    """Return the program ``bookie``: nothing but ``start``, as `add_start` says."""
    alone = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    add_start(alone, start)
    return alone


def config_of(given: Given) -> BookieConfig:
    """Return the configuration that the options say.

    Raises `typer.BadParameter`, which ends the program with status 2, if there is none such."""
    if given["uri"] is None:
        given = {**given, "uri": os.environ.get(URI_VARIABLE)}
    if not given["uri"]:
        raise typer.BadParameter("name the namespace of the cluster", param_hint="--uri")
    parts = ("", "clients", "disk_limits", "collector", "storage")
    fields: dict[str, dict[str, Any]] = {part: {} for part in parts}
    for option in OPTIONS:
        value = given[option.name]
        if value is not None and option.field not in OF_THE_PROCESS:
            part, _, name = option.field.rpartition(".")
            fields[part][name] = value
    _check_metrics_port(given)
    own = fields[""]
    for name in ("journal_directories", "ledger_directories"):
        own[name] = tuple(own.get(name, ()))
    try:
        return BookieConfig(
            **own,
            clients=replace(_DEFAULTS.clients, **fields["clients"]),
            disk_limits=replace(_DEFAULTS.disk_limits, **fields["disk_limits"]),
            collector=replace(_DEFAULTS.collector, **fields["collector"]),
            storage=replace(_DEFAULTS.storage, **fields["storage"]),
            tls=tls_settings(*(given[name] for name in TLS)),
        )
    except InvalidSetting as error:
        flag = next(each.flags[0] for each in OPTIONS if each.name == error.setting)
        raise typer.BadParameter(error.reason, param_hint=flag) from error
    except CallerError as error:
        raise typer.BadParameter(str(error)) from error


def _check_metrics_port(given: Given) -> None:
    port, port_max = given[METRICS_PORT], PORT_MAX - bool(given[AUTORECOVERY])
    if port is not None and not 0 <= port <= port_max:
        reason = f"{port} is not a port from 0 to {port_max}"
        if 0 <= port <= PORT_MAX:
            reason += "; with --autorecovery the next one is needed, too"
        raise typer.BadParameter(reason, param_hint="--metrics-port")
