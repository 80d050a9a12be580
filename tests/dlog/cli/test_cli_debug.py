"""``dlog debug bundle``: everything that a report of trouble needs, and no secret."""

import asyncio
import json
import socket
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TextIO

import pytest

import dlog
from dlog.cli import bundle as bundling
from dlog.cli.bundle import REDACTED, Bundle, BundleRequest, Redactor, Step, gather
from ledger.errors import MetadataUnavailable
from tests.dlog.cli.cli_shell import CliShell, cli_shell
from tests.dlog.test_secrets_unseen import told

SECRET = "hunter2-Planted_and-never-seen+so"
PEM = f"""-----BEGIN PRIVATE KEY-----
{"MIIEvQ9aBzQ" * 5}abcdefgh1
{"Qw3ErTy7UiO" * 5}abcdefgh2
{SECRET}
-----END PRIVATE KEY-----"""
FRAGMENT = 8
"""So many characters of a secret in a row are told too much."""


@pytest.fixture
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        yield made


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        found = {}
        for entry in tar:
            file = tar.extractfile(entry)
            assert file is not None
            found[entry.name.removeprefix("dlog-debug/")] = file.read().decode()
        return found


def fragments(text: str) -> list[str]:
    return [
        SECRET[at : at + FRAGMENT]
        for at in range(len(SECRET) - FRAGMENT + 1)
        if SECRET[at : at + FRAGMENT] in text
    ]


class _Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{self.path} is asked for\n".encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def pages() -> Iterator[int]:
    """Serve a page at each path; yield the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        serving = Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            serving.join()


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("connected to zk://me:SECRET@host:2181/root in 5 ms", "@host:2181/root in 5 ms"),
        ("zk://host/root?auth=digest:me:SECRET gave up", "zk://host/root"),
        ("https://user:a/SECRET@host/path", "@host/path"),
        ("password=SECRET after 3 tries", "after 3 tries"),
        ("db_password: SECRET, user: me", "user: me"),
        ("{'api-key': 'SECRET', 'at': 5}", "'at': 5"),
        ('{"tls_key": "SE\\"CRET SECRET", "event": "ready"}', '"event": "ready"'),
        ('"token":\n  "SECRET"', "token"),
        ("started with --password SECRET --port 5", "--port 5"),
        ("started with --token=SECRET --port 5", "--port 5"),
        ("Authorization: Bearer SECRET", "Authorization"),
        ("cookie: session=SECRET; other=SECRET", "cookie"),
        ("X-Api-Key: SECRET", "X-Api-Key"),
        ("said bearer SECRET and left", "and left"),
        ("DLOG_KEY_COMMAND='kms SECRET' dlog up", "dlog up"),
        ('secret = "SECRET', "secret"),
        (PEM.replace(SECRET, "SECRET"), "-----END PRIVATE KEY-----"),
        (PEM.replace(SECRET, "SECRET").replace("\n", "\\n"), "-----END PRIVATE KEY-----"),
    ],
)
def test_what_looks_like_a_secret_is_taken_out_and_the_rest_stays(line: str, kept: str) -> None:
    redacted = Redactor([]).text(line.replace("SECRET", SECRET), opaque=True)
    assert fragments(redacted) == []
    assert kept in redacted
    assert REDACTED in redacted


def test_what_is_known_to_be_secret_is_taken_out_wherever_it_stands() -> None:
    assert Redactor([SECRET]).text(f"nobody would guess <{SECRET}> here") == (
        f"nobody would guess <{REDACTED}> here"
    )
    assert Redactor(["5", ""]).text("5 bookies") == "5 bookies"


def test_long_strings_that_say_nothing_are_taken_out_of_logs_and_words_and_paths_stay() -> None:
    redactor = Redactor([])
    for opaque in ("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpX"):
        assert redactor.text(f"it was {opaque}.", opaque=True) == f"it was {REDACTED}."
        assert redactor.text(f"it was {opaque}.") == f"it was {opaque}."
    for plain in (
        "/var/lib/dlog/bookie-1/current/entry-logs",
        "2026-11-25T03:24:59.123456Z",
        "test_long_strings_that_say_nothing",
        "00000000000000000000000000012345",
    ):
        assert redactor.text(plain, opaque=True) == plain


def test_a_strange_log_does_not_take_for_ever() -> None:
    # So long that a pattern whose time is the square of it would take minutes.
    for strange in ("a." * 30_000, "a" * 60_000, "-----BEGIN X-----" * 4_000, "x-" * 30_000):
        Redactor([SECRET]).text(strange, opaque=True)


def test_values_are_redacted_by_their_names_and_stay_json() -> None:
    given = {"password": SECRET, "key": SECRET, "token_count": 5, "list": [{"mac": SECRET}], "n": 1}
    shown = Redactor([]).value({**given, "uri": f"zk://host/root?auth=digest:me:{SECRET}"})
    assert json.loads(json.dumps(shown))["token_count"] == 5
    assert fragments(json.dumps(shown)) == []


def test_a_secret_that_is_cut_in_half_at_an_end_of_a_log_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundling, "LOG_BYTES_MAX", 300)
    monkeypatch.setattr(bundling, "MARGIN_BYTES", 700)
    filler = "".join(f"line {number} is well\n" for number in range(30))
    planted = (
        f"at zk://me:{SECRET}@host/root?auth=digest:me:{SECRET}\npassword = '{SECRET}'\n"
        f"{PEM}\n--token {SECRET}\n"
    )
    text = f"{filler}{planted}{filler}"
    path = tmp_path / "cut.log"

    async def at_every_end(log: TextIO) -> None:
        log.write(filler)
        for end in range(len(filler), len(text) + 1):
            log.write(text[len(filler) : end][-1:])
            log.flush()
            bundle = Bundle(Redactor([]))
            await bundling._logs(bundle, BundleRequest(None, [], [path]))
            [content] = [each.decode() for each in bundle.files.values()]
            assert fragments(content) == [], (end, content)
            assert content.startswith("line ") or REDACTED in content

    with path.open("w") as log:
        asyncio.run(at_every_end(log))


def test_a_bundle_with_a_dead_bookie_has_everything_else_and_no_secret(
    shell: CliShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LEDGER_PASSWORD", "DLOG_KEY_COMMAND", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, SECRET)
    with dlog.Log.open("orders", uri=shell.uri) as log:
        log.append(SECRET.encode(), key=SECRET.encode(), headers={"h": SECRET.encode()})
    shell.cluster.kill_bookie(0)
    (tmp_path / "bookie.log").write_text(f"began\npassword={SECRET}\nit is {SECRET}\nended\n")
    arguments = ("debug", "bundle", "--out", str(tmp_path / "made.tar.gz"))
    with pages() as port:
        done = shell.json(
            *arguments,
            *("--log-file", str(tmp_path / "bookie.log"), "--log-file", str(tmp_path / "none.log")),
            *("--metrics", f"127.0.0.1:{port}"),
        )
    made = tmp_path / "made.tar.gz"
    assert done["file"] == str(made)
    assert done["bytes"] == made.stat().st_size
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    found = contents(made)
    assert told({"it": SECRET.encode()}, "".join(f"{k}\n{v}" for k, v in found.items())) == set()
    assert "dlog-ledgers" in json.loads(found["versions.json"])
    assert json.loads(found["settings.json"])["key_command"] == REDACTED
    assert json.loads(found["status.json"])["healthy"] is False
    assert json.loads(found["doctor.json"])["servers"]
    metadata = json.loads(found["metadata.json"])
    assert len(metadata["bookies"]) >= 2
    assert {each["reads_level"] for each in metadata["bookies"]} >= {metadata["level"]}
    assert found["logs/01-bookie.log"].startswith("began\npassword=")
    assert found["logs/01-bookie.log"].endswith("ended\n")
    assert found[f"metrics/127.0.0.1_{port}.txt"].endswith("/metrics is asked for\n")
    assert f"readyz/127.0.0.1_{port}.txt" in found
    assert "none.log: it is not a file" in found["MISSING.txt"]
    assert set(json.loads(found["MANIFEST.json"])["files"]) == (
        set(found) - {"MANIFEST.json", "MISSING.txt"}
    )


@pytest.mark.parametrize("uri", [f"zk://127.0.0.1:1/root?auth=digest:me:{SECRET}", "file", "what:"])
def test_a_bundle_is_made_though_the_store_cannot_be_reached(
    shell: CliShell, tmp_path: Path, uri: str
) -> None:
    shell.uri = f"file://{tmp_path}/none" if uri == "file" else uri
    arguments = ("debug", "bundle", "--out", str(tmp_path / "made.tar.gz"))
    result = shell.invoke(*arguments, DLOG_TIMEOUT_S="1")
    assert result.exit_code == 0, result.stderr
    assert "could not be collected" in result.stderr
    found = contents(tmp_path / "made.tar.gz")
    assert "dlog-ledgers" in json.loads(found["versions.json"])
    for name in ("status.json", "doctor.json", "metadata.json", "metrics"):
        assert name in found["MISSING.txt"], found["MISSING.txt"]
    assert fragments("".join(found.values()) + result.output) == []
    assert not (tmp_path / "none").exists()


def test_what_fails_or_is_too_slow_takes_nothing_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(_: Bundle, __: BundleRequest) -> None:
        await asyncio.Event().wait()

    async def fail(_: Bundle, __: BundleRequest) -> None:
        raise MetadataUnavailable("zk://host", f"password={SECRET}", 1)

    async def bug(_: Bundle, __: BundleRequest) -> None:
        raise ZeroDivisionError

    async def works(bundle: Bundle, _: BundleRequest) -> None:
        bundle.add_text("works.txt", "it works")

    monkeypatch.setattr(bundling, "STEP_S_MAX", 0.05)
    steps = [Step(each.__name__, each) for each in (hang, fail, bug, works)]
    monkeypatch.setattr(bundling, "STEPS", steps)
    bundle, done = Bundle(Redactor([])), list[str]()
    asyncio.run(gather(bundle, BundleRequest(None, [], []), done.append))
    assert set(bundle.files) == {"works.txt"}
    assert "too slow: it took longer than 0.05 s" in bundle.missing["hang"]
    assert "ZeroDivisionError" in bundle.missing["bug"]
    assert len(done) == len(steps)
    assert fragments(f"{bundle.missing}{done}") == []


def test_a_page_that_does_not_answer_or_is_too_large_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bundling, "PAGE_S_MAX", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        bundle = Bundle(Redactor([]))
        asyncio.run(bundling._pages(bundle, BundleRequest(None, [address, "nonsense"], [])))
    assert bundle.files == {}
    assert "too slow" in bundle.missing[f"metrics/{bundling._file_name(address)}.txt"]
    assert "it is not HOST:PORT" in bundle.missing["metrics/nonsense.txt"]


def test_what_is_too_large_is_missed_and_what_is_small_still_comes_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle = Bundle(Redactor([]), left_bytes=100)
    bundle.add_text("large", "x y " * 26)
    bundle.add_text("small", "x")
    assert set(bundle.files) == {"small"}
    assert (
        f"too large: 104 bytes, and 100 were left of the {bundling.BYTES_MAX}"
        in (bundle.missing["large"])
    )


def test_a_file_that_is_there_is_not_overwritten(shell: CliShell, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    assert "File exists" in shell.refused("debug", "bundle", "--out", str(tmp_path / "there"))
    assert (tmp_path / "there").read_text() == "mine"
    assert "No such file" in shell.refused("debug", "bundle", "--out", str(tmp_path / "no" / "x"))
