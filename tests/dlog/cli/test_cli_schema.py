"""``dlog log schema``: versions that can follow each other, and what comes of them with the log."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlog import Log
from dlog.aio.admin import delete_log, log_schemas, set_log_schema
from dlog.aio.maintain.lifecycle import drop
from dlog.aio.namespace_connection import connected
from dlog.aio.port import Ledgers
from dlog.aio.procedures import on_store
from dlog.aio.store import ManifestNode
from dlog.errors import NoSuchLog
from dlog.log_schema import LogSchema, LogSchemas
from dlog.protocol.schema_steps import edit_schemas
from ledger.metastore.port import children_of
from ledger.procedures import run
from ledger.protocol.procedure import Action
from tests.dlog.cli.cli_shell import CliShell, cli_shell

pa: Any = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.spark  # pyarrow and fastavro come with it
ID = {"name": "id", "type": "long"}
NAME = {"name": "name", "type": ["null", "string"], "default": None}


@pytest.fixture(scope="module")
def shell() -> Iterator[CliShell]:
    with cli_shell() as made:
        yield made


@pytest.fixture
def log(shell: CliShell, request: pytest.FixtureRequest) -> str:
    name = f"orders-{request.node.name.replace('[', '-').replace(']', '')[:60]}"
    shell.run("log", "create", name)
    return name


def avsc(folder: Path, *fields: Any, name: str = "orders.avsc") -> str:
    path = folder / name
    path.write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}))
    return str(path)


def test_versions_are_set_shown_listed_and_cleared(
    shell: CliShell, log: str, tmp_path: Path
) -> None:
    assert f"log '{log}' has no schema" in shell.invoke("log", "schema", "list", log).stderr
    assert shell.json("log", "schema", "list", log) == []
    first = avsc(tmp_path, ID)
    dry = shell.json("log", "schema", "set", log, "--file", first, "--dry-run")
    assert (dry["version"], dry["dry_run"]) == (1, True)
    assert shell.json("log", "schema", "list", log) == []
    done = shell.json("log", "schema", "set", log, "--file", first)
    assert (done["log"], done["version"], done["format"]) == (log, 1, "avro")
    assert json.loads(done["definition"])["name"] == "Order"
    assert shell.json("log", "schema", "set", log, "--file", first)["version"] == 1, "the same"
    second = avsc(tmp_path, ID, NAME)
    assert "version 2" in shell.invoke("log", "schema", "set", log, "--file", second).stderr
    text = shell.run("log", "schema", "show", log)
    assert [line.split() for line in text.splitlines()[-2:]] == [
        ["id", "int64", "no", "no"],
        ["name", "string", "yes", "yes"],
    ]
    assert "name" not in shell.run("log", "schema", "show", log, "--version", "1").splitlines()[-1]
    assert [each["version"] for each in shell.json("log", "schema", "list", log)] == [1, 2]
    left = shell.json("log", "schema", "clear", log, "--before", "2", "--yes")
    assert left["versions"] == [2]
    assert "no version 1" in shell.invoke("log", "schema", "show", log, "--version", "1").stderr
    shell.run("log", "schema", "clear", log, "--yes")
    assert shell.json("log", "schema", "set", log, "--file", first)["version"] == 3


def test_what_cannot_follow_is_refused_with_each_field(
    shell: CliShell, log: str, tmp_path: Path
) -> None:
    shell.run("log", "schema", "set", log, "--file", avsc(tmp_path, ID, NAME))
    wrong = avsc(tmp_path, ID | {"type": "string"}, {"name": "more", "type": "int"})
    for dry in ((), ("--dry-run",)):
        result = shell.invoke("log", "schema", "set", log, "--file", wrong, *dry)
        assert result.exit_code == 1
        assert "version 1" in result.stderr
        assert "'id' was int64 and is string now" in result.stderr
        assert "'more' is new and required" in result.stderr
    assert [each["version"] for each in shell.json("log", "schema", "list", log)] == [1]


def test_a_proto_file_is_compiled_with_what_it_imports(
    shell: CliShell, log: str, tmp_path: Path
) -> None:
    (tmp_path / "line.proto").write_text(
        'syntax = "proto3"; package shop; message Line { string sku = 1; }'
    )
    path = tmp_path / "orders.proto"
    path.write_text(
        'syntax = "proto3"; package shop; import "line.proto";'
        "message Order { int64 id = 1; repeated Line lines = 2; }"
    )
    arguments = ("log", "schema", "set", log, "--file", str(path))
    assert "a message is named" in shell.invoke(*arguments).stderr
    assert "there are shop.Line, shop.Order" in shell.invoke(*arguments, "--message", "A").stderr
    done = shell.json(*arguments, "--message", "shop.Order")
    assert (done["format"], done["message"]) == ("protobuf", "shop.Order")
    assert "list<record<sku: string>>" in shell.run("log", "schema", "show", log)
    path.write_text("message {")
    assert "orders.proto" in shell.invoke(*arguments, "--message", "shop.Order").stderr


def test_without_a_compiler_a_proto_file_says_what_to_install(
    shell: CliShell, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "orders.proto"
    path.write_text('syntax = "proto3"; message Order { int64 id = 1; }')
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho 'No module named grpc_tools' >&2; exit 1\n")
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    monkeypatch.setenv("PATH", str(tmp_path))
    result = shell.invoke("log", "schema", "set", log, "--file", str(path), "--message", "Order")
    assert "pip install grpcio-tools" in result.stderr


def test_files_that_are_no_definition_are_refused(
    shell: CliShell, log: str, tmp_path: Path
) -> None:
    path = tmp_path / "orders.txt"
    path.write_text("{}")
    assert ".avsc, .json" in shell.invoke("log", "schema", "set", log, "--file", str(path)).stderr
    path = tmp_path / "orders.json"
    path.write_text("{")
    assert "no JSON" in shell.invoke("log", "schema", "set", log, "--file", str(path)).stderr


def test_a_schema_belongs_to_the_log_and_not_to_its_name(
    shell: CliShell, log: str, tmp_path: Path
) -> None:
    file = avsc(tmp_path, ID)
    shell.run("log", "schema", "set", log, "--file", file)
    shell.run("log", "rename", log, f"{log}-new")
    assert [each["version"] for each in shell.json("log", "schema", "list", f"{log}-new")] == [1]
    shell.run("log", "create", log)
    assert shell.json("log", "schema", "list", log) == []
    shell.run("log", "delete", f"{log}-new", "--yes")
    assert "no log" in shell.invoke("log", "schema", "list", f"{log}-new").stderr
    shell.run("log", "create", f"{log}-new")
    assert shell.json("log", "schema", "list", f"{log}-new") == []


def test_two_that_set_a_schema_at_once_get_two_versions(shell: CliShell, log: str) -> None:
    schemas = [
        LogSchema(
            format="json",
            definition=json.dumps(
                {"type": "object", "properties": {f"p{n}": {"type": "string"}}}
            ).encode(),
        )
        for n in range(8)
    ]

    async def race() -> LogSchemas:
        async with connected(shell.uri, None) as client:
            done = await asyncio.gather(
                *(set_log_schema(log, each, client=client) for each in schemas)
            )
            stored = await log_schemas(log, client=client)
            assert sorted(each.version for each in done) == [*range(1, 9)] or len(done) == 8
            return stored

    stored = asyncio.run(race())
    assert [each.version for each in stored.versions] == [*range(1, 9)]
    assert {each.definition for each in stored.versions} == {each.definition for each in schemas}


def test_a_log_that_is_deleted_meanwhile_leaves_no_schema(shell: CliShell) -> None:
    """Whatever step of `set` the deletion comes before."""
    schema = LogSchema(
        format="avro",
        definition=json.dumps({"type": "record", "name": "Order", "fields": [ID]}).encode(),
    )

    async def attempt(number: int) -> bool:
        """Delete the log before action *number*; return whether there was such an action."""
        async with connected(shell.uri, None) as client:
            name = f"doomed-{number}"
            await make(client, name)
            node = ManifestNode(client.store, name)
            otherwise = on_store(client.store)
            count = 0

            async def perform(action: Action[Any]) -> object:
                nonlocal count
                if count == number:
                    await drop(client, ManifestNode(client.store, name))
                count += 1
                return await otherwise(action)

            steps = edit_schemas(node.steps, lambda old: old.with_next(name, schema, now_ms=1))
            try:
                await run(steps, perform)
            except NoSuchLog:
                assert count > number
            else:
                await delete_log(name, client=client)
            assert await children_of(client.store, "/schemas") == before
            return count > number

    async def make(client: Ledgers, name: str) -> None:
        from dlog.aio.admin import create_log

        await create_log(name, client=client)

    async def listed() -> list[str]:
        async with connected(shell.uri, None) as client:
            return await children_of(client.store, "/schemas")

    before = asyncio.run(listed())
    number = 0
    while asyncio.run(attempt(number)):
        number += 1
    assert number >= 5


def test_tail_prints_rows_and_says_which_records_are_none(
    shell: CliShell, log: str, tmp_path: Path
) -> None:
    assert "has no schema" in shell.invoke("log", "tail", log, "--decode").stderr
    old = LogSchema(format="avro", definition=Path(avsc(tmp_path, ID, NAME)).read_bytes())
    shell.run("log", "schema", "set", log, "--file", avsc(tmp_path, ID, NAME))
    new = {"name": "name", "type": ["null", "bytes"], "default": None}
    shell.run("log", "schema", "set", log, "--file", avsc(tmp_path, new, ID))
    rows = pa.RecordBatch.from_pylist([{"id": 1, "name": "a"}], schema=old.arrow_schema())
    (payload,) = old.encode(rows)
    with Log.open(log, uri=shell.uri) as writer:
        writer.append(payload, headers={"dlog.schema": b"1"})
        writer.append(payload, headers={"dlog.schema": b"9"})
        writer.append(b"\x02\x04\xff\xfe\x0e")
    result = shell.invoke("log", "tail", log, "--decode")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"name": "a", "id": 1},
        None,
        {"name": {"base64": "//4="}, "id": 7},
    ]
    assert "record 1: the log has no version 9" in result.stderr
    lines = shell.run("log", "tail", log, "--decode", "--json").splitlines()
    both = [json.loads(line) for line in lines]
    assert [each["decoded"] and each["decoded"]["id"] for each in both] == [1, None, 7]
    assert both[0]["headers"] == {"dlog.schema": "1"}
    assert shell.invoke("log", "tail", log, "--decode", "--offsets").exit_code == 2
