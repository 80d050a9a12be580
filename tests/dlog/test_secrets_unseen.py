"""SECURITY.md promises that secrets are shown nowhere: they are planted, and looked for.

In whatever form: as they are, in base64 at any of its three shifts, in hexadecimal, as Python
writes bytes. The first half is a matrix over all dataclasses of the product, so one that is new is
in it; the second half is a cluster, its commands, its console and its log at DEBUG.
"""

import asyncio
import base64
import dataclasses
import importlib
import inspect
import logging
import pkgutil
import re
from collections.abc import Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

import bookie
import dlog
import dlog.metrics
import leader
import ledger
from dlog.cli.app import app
from dlog.config import InvalidConfig, load
from dlog.console.pages import ConsoleAccess
from dlog.process_settings import ProcessSettings
from ledger.client import LedgerClient
from ledger.errors import LogError
from ledger.metastore import zookeeper_link
from ledger.metastore.uri import parse_uri, without_secrets
from ledger.metering.collector import page_of
from ledger.metering.declaration import Exposed
from ledger.quorum import Quorum
from tests.dlog.cli.cli_shell import cli_shell
from tests.dlog.console.looking import looking
from tests.metering.rig import Seen, whole_cluster

T = TypeVar("T")

SECRET: Final = "hunter2-Planted_and-never-seen+so"
WITH_SECRET: Final = f"zk://127.0.0.1:1/root?auth=digest:me:{quote(SECRET)}"
HIDDEN: Final = {"it": SECRET.encode(), "it in a URI": quote(SECRET).encode()}
SECRET_NAMES: Final = re.compile(r"password|secret|token|credential|uri$|(^|_)(key|mac|cipher)s?$")
NO_SECRETS: Final = {
    # A token that nobody has to know: it says which of two nodes or starts is one's own.
    "leader.election.Candidacy.token",
    "bookie.identity.cookie.Cookie.token",
    "ledger.metadata.LedgerMetadata.creation_token",
    "dlog.protocol.object_owner.ObjectOwner.token",
    "dlog.protocol.table.Table.token",
    # Settings, and what hides its own secrets (`ScramKeys`).
    "dlog.kafka.authentication.SaslSettings.tokens",
    "dlog.kafka.tokens.TokenSettings.keys",
    "dlog.kafka.protocol.scram.ScramCredential.keys",
    "dlog.kafka.protocol.users.KafkaUsers.credentials",
    # Paths of files.
    "ledger.security.settings.TlsSettings.key",
    "dlog.tls.files.Pair.key",
    # Made of what a store says of itself, which has no options.
    "ledger.environment.Environment.uri",
    "dlog.health.store.StoreFacts.uri",
    "dlog.namespace_init.Initialised.uri",
    # Keys of records, or which column has them.
    "dlog.columns.Columns.keys",
    "dlog.console.views.records.RecordRow.key",
    "dlog.protocol.packer.Group.keys",
    "dlog.protocol.packer.EncodedGroup.keys",
    "dlog.recordbatch.RecordBatch.keys",
    "dlog.recordbatch.KafkaRecordBatch.keys",
    "dlog.kafka_batch.KafkaColumns.keys",
    "dlog.kafka_batch.KafkaRecords.keys",
    "dlog.spark.sink.columns.SinkColumns.key",
    # What a column is called between versions of a schema.
    "dlog.log_schema.columns.SchemaField.key",
    # Says that there is no key.
    "ledger.environment.Credentials.without_mac",
    # It shows itself without its key.
    "dlog.encryption.ledgers.Sealer.data_key",
    "dlog.encryption.ledgers.Opener.data_key",
}


def forms(secret: bytes) -> Iterator[str]:
    """Yield texts of which one is in any text that tells *secret*."""
    yield secret.decode("latin-1")
    yield repr(secret)[2:-1]
    yield secret.hex()
    for shift in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(b"\0" * shift + secret).decode()[4 : 4 * (len(secret) // 3)]


def told(secrets: dict[str, bytes], text: str) -> set[str]:
    """Return the names of those *secrets* that *text* tells."""
    lower = text.lower()
    return {
        name
        for name, secret in secrets.items()
        if any(form in text for form in forms(secret)) or secret.hex() in lower
    }


def test_a_secret_is_found_in_whatever_form() -> None:
    secret = bytes(range(200, 232))
    for text in (
        f"x={secret!r}",
        secret.hex().upper(),
        base64.b64encode(b"a" + secret + b"b").decode(),
        base64.urlsafe_b64encode(b"ab" + secret).decode(),
    ):
        assert told({"it": secret}, text) == {"it"}
    assert not told({"it": secret}, "nothing of it")


NEED_MORE: Final = (
    "dlog.spark",
    "dlog.demo",
    "dlog.local",
    "dlog.arrow",
    "dlog.archive.table_files",
)
"""What needs PySpark or what comes with it: `tests/dlog/spark/test_spark_secrets.py` has it."""


def dataclasses_of_the_product(*, spark: bool = False) -> Iterator[type[Any]]:
    for package in (ledger, leader, bookie, dlog):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.startswith(NEED_MORE) is not spark or found.name.endswith("__main__"):
                continue
            for each in vars(importlib.import_module(found.name)).values():
                ours = inspect.isclass(each) and each.__module__ == found.name
                if ours and dataclasses.is_dataclass(each) and isinstance(each, type):
                    yield each


def shown(kind: type[Any], planted: str) -> str:
    """Return how an instance of *kind* shows itself whose field *planted* is a secret."""
    made = object.__new__(kind)
    for field in dataclasses.fields(kind):
        text = WITH_SECRET if field.name.endswith("uri") else SECRET
        object.__setattr__(made, field.name, text if field.name == planted else None)
    return repr(made)


def secrets_shown_by(kinds: Iterable[type[Any]]) -> tuple[int, set[str]]:
    """Return how many fields of *kinds* are secrets by their names, and which are shown."""
    seen = set()
    looked_at = 0
    for kind in kinds:
        for field in dataclasses.fields(kind):
            if SECRET_NAMES.search(field.name):
                looked_at += 1
                if told(HIDDEN, shown(kind, field.name)):
                    seen.add(f"{kind.__module__}.{kind.__name__}.{field.name}")
    return looked_at, seen - NO_SECRETS


def test_no_dataclass_shows_a_field_that_is_a_secret_by_its_name() -> None:
    looked_at, seen = secrets_shown_by(dataclasses_of_the_product())
    assert looked_at > 30
    assert not seen


def test_settings_show_neither_the_namespaces_options_nor_commands_and_files_of_keys() -> None:
    given = dict.fromkeys(ProcessSettings.model_fields, SECRET)
    given |= {"uri": WITH_SECRET}
    made = ProcessSettings.model_construct(
        uri=given["uri"], tls_key=given["tls_key"], key_command=given["key_command"]
    )
    assert SECRET not in repr(made)
    assert quote(SECRET) not in f"{made!r} {made}"


@pytest.mark.parametrize("line", ['key_comand = "kms {}"', 'timeout_s = "{}"', 'audit = "{}"'])
def test_a_wrong_setting_is_refused_and_not_repeated(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(line.format(SECRET))
    monkeypatch.setenv("DLOG_CONFIG", str(path))
    monkeypatch.delenv("DLOG_TIMEOUT_S")
    with pytest.raises(InvalidConfig) as caught:
        load()
    cause: BaseException | None = caught.value
    while cause is not None:  # DLOG_DEBUG=1 shows the whole chain
        if "timeout_s" not in line:  # says what it is, as a duration that is none is no secret
            assert SECRET not in f"{cause} {cause!r}"
        cause = cause.__cause__


@pytest.mark.parametrize(
    "uri",
    [
        f"zk://a/r?auth=plain:{SECRET}",
        f"zk://a/r?digest:me:{SECRET}",
        f"zk://a/r?auth=digest:me:x&{SECRET}",
        "zk://a/r?auth=digest:me:x&hunter",
        f"zk://a/r#auth=digest:me:{SECRET}",
        f"zk://a/r?auth=digest:me:x#{SECRET}",
        f"zk://me:{SECRET}@a/r",
        f"zk://me:{SECRET}@a/r#x",
        f"zk://me:{SECRET}@[::1/r",
        f"zk://a:port/r?auth=digest:me:{SECRET}",
        f"zk://a//r?auth=digest:me:{SECRET}",
        f"http://me:{SECRET}@a/b",
        f"file://me:{SECRET}@host/x",
        f"file:///d?auth=digest:me:{SECRET}",
        f"memory://name?auth=digest:me:{SECRET}",
        f"memory://a/b?auth=digest:me:{SECRET}",
        f"/r?auth=digest:me:{SECRET}",
        f"a:2181/r?auth=digest:me:{SECRET}",
        f"me:{SECRET}@a:2181/r",
    ],
)
def test_a_wrong_uri_is_refused_and_its_password_not_repeated(uri: str) -> None:
    with pytest.raises(LogError) as caught:
        parse_uri(uri)
    assert not re.search("hunter", f"{caught.value} {caught.value!r} {vars(caught.value)}")
    assert "hunter" not in without_secrets(uri)


@pytest.mark.parametrize(("level", "is_shown"), [(logging.DEBUG, False), (logging.WARNING, True)])
def test_what_kazoo_sends_is_not_logged(level: int, is_shown: bool) -> None:
    log = zookeeper_link._logs_of_kazoo
    record = log.makeRecord(log.name, level, __file__, 1, "sending %s", (SECRET,), None)
    assert bool(log.filter(record)) is is_shown


COMMANDS: Final = """
status
doctor
log list
log show plain
log show hidden
log verify hidden
log trace hidden --offset 0
log trace plain --offset 0
log tail hidden
log append hidden --file {lines}
log settings get hidden
log create wrong --set encrypt_with={key}
log settings set plain encrypt_with={key}
log truncate plain --before 99
ledger list
ledger show {ledger}
ledger show {hidden}
ledger read {ledger} --password wrong
ledger read {ledger} --password {password}
ledger recover {ledger} --password wrong
ledger recover {ledger} --password {password}
access list
quota list
bookie list
changes list
metadata accept-loss --uri {uri}
key rewrap hidden second
--key-command {command} log tail hidden
"""


@pytest.mark.slow
@pytest.mark.integration
def test_commands_show_no_secret_also_at_debug_and_as_json(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    keys, lines = tmp_path / "keys", tmp_path / "lines"
    lines.write_text("hush\n")
    with cli_shell() as shell:
        shell.audit = "auto"
        shell.run("key", "new", "first", "--file", str(keys))
        key = keys.read_text().split()[1]
        shell.write("plain")
        shell.run("log", "create", "hidden", "--set", "encrypt_with=first")
        shell.run("--key-file", str(keys), "log", "append", "hidden", "--file", str(lines))
        ledger_id = made_with_password(shell.uri)
        secrets = {
            "password": SECRET.encode(),
            "password in a URI": quote(SECRET).encode(),
            "key": base64.b64decode(key),
            **secrets_of_ledgers(shell.uri),
        }
        assert len(secrets) > 6
        values = {
            "lines": str(lines),
            "key": key,
            "ledger": str(ledger_id),
            "hidden": str(ledger_id - 1),
            "password": SECRET,
            "uri": WITH_SECRET,
            "command": f"no-such-program --token {SECRET}",
        }
        seen = {}
        for line in COMMANDS.strip().splitlines():
            words = [word.format(**values) for word in line.split(" ")]
            for more in ([], ["--json"]):
                result = shell.invoke(*words, *more, DLOG_DEBUG="1")
                if found := told(secrets, f"{result.stdout} {result.stderr} {result.exception!r}"):
                    seen[line] = found
        assert not seen
    assert not told(secrets, caplog.text)


def made_with_password(uri: str) -> int:
    """Return the id of a ledger that was made with `SECRET` as its password."""

    async def make() -> int:
        client = await LedgerClient.connect(uri)
        writer = await client.create(Quorum(2, 2, 2), password=SECRET.encode())
        await writer.add(b"entry")
        await writer.close()
        everything = f"{client!r} {writer!r} {writer._credentials!r} {client.environment!r}"
        await client.close()
        assert not told({"password": SECRET.encode()}, everything)
        return writer.ledger_id

    return run_here(make())


def secrets_of_ledgers(uri: str) -> dict[str, bytes]:
    async def read() -> dict[str, bytes]:
        client = await LedgerClient.connect(uri)
        found = {}
        async for ledger_id in client.list():
            metadata = await client.describe(ledger_id)
            found[f"access key of {ledger_id}"] = metadata.access_key
            if metadata.secret:
                found[f"secret of {ledger_id}"] = metadata.secret
        await client.close()
        return found

    return run_here(read())


def run_here(work: Coroutine[Any, Any, T]) -> T:
    from dlog.sync.loop_thread import LoopThread

    return LoopThread.get().run(work)


@pytest.mark.slow
async def test_pages_of_the_console_show_no_secret() -> None:
    async with looking(ConsoleAccess(token=SECRET)) as seen:
        writer = await seen.client.create(Quorum(2, 2, 2), password=SECRET.encode())
        await writer.add(b"entry")
        metadata = await seen.client.describe(writer.ledger_id)
        await writer.close()
        secrets = {"password": SECRET.encode(), "access key": metadata.access_key}
        pages = ["/", "/logs", "/ledgers", f"/ledger?id={writer.ledger_id}", "/nowhere"]
        for path in pages:
            answer = await seen.browser.get(path)
            assert not told(secrets, f"{answer.text} {answer.headers}"), path
        refused = await seen.browser.post("/login", data={"token": "wrong"})
        assert not told(secrets, f"{refused.text} {refused.headers}")


@pytest.mark.slow
def test_neither_metrics_nor_what_is_read_of_a_stopped_bookies_files_show_a_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    pages, secrets = asyncio.run(pages_of_a_bookie_with_secrets(tmp_path))
    assert b"dlog_bookie_adds_total" in pages.encode()
    assert not told(secrets, pages)
    directory = str(tmp_path / "bookie-0")
    for command in DUMPS:
        for more in ([], ["--json"]):
            words = ["bookie", *command.split(), "--dir", directory, *more]
            result = CliRunner().invoke(app, words, env={"DLOG_DEBUG": "1"})
            assert result.exit_code == 0, result.output
            assert len(result.stdout) > 20
            assert not told(secrets, f"{result.stdout} {result.stderr}"), command
    assert not told(secrets, caplog.text)


DUMPS: Final = ("check", "mark", "journal dump --all", "entrylog dump --frames", "index dump")


async def pages_of_a_bookie_with_secrets(directory: Path) -> tuple[str, dict[str, bytes]]:
    """Return the pages of metrics of a bookie and its client, after a ledger with a password was
    written, read, and refused to who has another one; and the secrets."""
    async with whole_cluster(directory, 1, Seen()) as cluster, cluster.client() as client:
        writer = await client.create(Quorum(1, 1, 1), password=SECRET.encode())
        await writer.add(b"entry")
        metadata = await client.describe(writer.ledger_id)
        with pytest.raises(LogError):
            await client.open(writer.ledger_id, password=b"wrong")
        await client.open(writer.ledger_id, password=SECRET.encode())
        other = await client.create(Quorum(1, 1, 1))
        await other.add(b"entry")
        of_other = await client.describe(other.ledger_id)
        secrets = {
            "password": SECRET.encode(),
            "access key": metadata.access_key,
            "another access key": of_other.access_key,
        }
        assert all(secrets.values())
        if of_other.secret:
            secrets["secret"] = of_other.secret
        own = Exposed()
        dlog.metrics.expose(own)
        pages = [page_of(each).render() for each in (own, cluster.bookies[0].exposed)]
    return b"".join(pages).decode(), secrets
