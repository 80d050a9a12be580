"""What happens to a cluster, so that all of its metrics move."""

import asyncio
import errno
import json
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, Final

import httpx
import pytest

import dlog.testing
from bookie.autorecovery import metrics as repair_metrics
from bookie.autorecovery import process as repair_process
from bookie.autorecovery.checks import CheckRecord
from bookie.autorecovery.marks import Marks
from bookie.autorecovery.process import AutorecoveryConfig, run_autorecovery
from bookie.autorecovery.protocol.audit import AuditConfig
from bookie.autorecovery.protocol.repair import RepairOutcome
from bookie.autorecovery.worker import RepairThrottle, WorkerConfig, keep_reporting, set_throttle
from bookie.disk.port import Directories, DiskUsage, RealDisk, RealFile, disk_error
from bookie.entrylog.format import SUFFIX
from bookie.identity.stamp import accept_loss
from bookie.server.authorizer import Authorizer
from bookie.server.quota import QuotaThrottle
from dlog import Command, StateMachine
from dlog.aio import Log, Replica, Standby
from dlog.aio.admin import restore_segments, update_settings
from dlog.aio.maintain.archiver import Archiver, ArchiverConfig
from dlog.aio.maintain.janitor import Janitor, JanitorConfig
from dlog.aio.read.segments import stamp
from dlog.aio.store import ManifestNode
from dlog.console import metrics as console_metrics
from dlog.console.http_server import ConsoleOptions, console
from dlog.kafka import metrics as kafka_metrics
from dlog.kafka.authentication import SaslSettings
from dlog.kafka.gateway import Gateway, GatewayOptions, gateway
from dlog.kafka.listener import ClientSession
from dlog.kafka.tokens import KeysUnavailable, TokenSettings
from dlog.kafka.wire import FETCH, SASL_HANDSHAKE
from dlog.protocol import client_table
from dlog.settings import LogSettings
from ledger.client import LedgerClient
from ledger.errors import DamagedMetadata, LogError, NodeExists
from ledger.ids import BookieId, LedgerId
from ledger.log_events import now_ms
from ledger.metadata import LedgerMetadata
from ledger.metastore import open_store
from ledger.metering.declaration import Exposed
from ledger.metrics import METRICS as LEDGER_METRICS
from ledger.quorum import Quorum
from ledger.requests import ReadAnswer, ReadQuery, Status
from ledger.security.access import Grant, Role
from ledger.security.certificates import Security
from ledger.security.documents import change_rules
from ledger.security.metrics import METRICS
from ledger.security.quotas import Quota, Quotas, Subject
from ledger.transport.framing import FrameKind
from ledger.transport.handshake import Purpose
from ledger.transport.messages import read_request
from tests.certificates import certificate, put
from tests.dlog.kafka.clients import CONFLUENT
from tests.dlog.kafka.group_clients import ConfluentConsumer
from tests.dlog.kafka.test_sasl import KEYS as TOKEN_KEYS
from tests.dlog.kafka.test_wire import request_frame
from tests.ledger.by_hand import greeted
from tests.metering.rig import WholeCluster, repair_of
from tests.patience import PATIENT, patient_campaign
from tests.waiting import PATIENCE_S, eventually, until

Happening = Callable[[WholeCluster, pytest.MonkeyPatch], Awaitable[None]]

PAYLOAD: Final = b"x" * 1000
ALL: Final[list[Happening]] = []


def happening(work: Happening) -> Happening:
    ALL.append(work)
    return work


@happening
async def certificates_are_renewed(cluster: WholeCluster, _: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory() as name:
        directory, exposed = Path(name), Exposed()
        security = Security(put(directory, certificate("writer")), look_s=0.0)
        exposed.add(METRICS, security)
        cluster.seen.watch(exposed)
        cluster.seen.look()
        for renewed in (certificate("renewed", days=2.0), certificate("lost", by="other")):
            put(directory, renewed)
            security.look()
            cluster.seen.look()


@happening
async def a_metadata_store_is_damaged(cluster: WholeCluster, _: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory() as name:
        store = await open_store(f"file://{name}/metadata")
        exposed = Exposed()
        exposed.add(LEDGER_METRICS, None)
        cluster.seen.watch(exposed)
        cluster.seen.look()
        await store.create("/a", b"x")
        with closing(sqlite3.connect(Path(name, "metadata", "metadata.sqlite"))) as database:
            database.execute("UPDATE node SET value = x'00' WHERE path = '/a'")
            database.commit()
        with pytest.raises(DamagedMetadata):
            await store.get("/a")
        cluster.seen.look()
        await store.close()


@happening
async def logs_are_written_and_read(cluster: WholeCluster, _: pytest.MonkeyPatch) -> None:
    """And rolled, taken over, and lost."""
    async with cluster.client() as client:
        log = await Log.open("read-and-lost", client=client)
        tail = await Log.tail("read-and-lost", client=client)
        await asyncio.gather(*(log.append(PAYLOAD) for _ in range(200)))
        read = 0
        while read < 200:
            read += len(await tail.read_batch())
        await cluster.seen.until("dlog_read_lag_seconds", "read-and-lost", 0.0)
        waiting = asyncio.create_task(tail.read_batch())
        await reached(
            cluster,
            lambda: any(each.running.core.waiting_reads for each in cluster.bookies),
            "it waits",
        )
        await log.append(PAYLOAD)
        await waiting
        await log.roll()
        another = await Log.open("read-and-lost", client=client)
        await another.append(PAYLOAD)
        with suppress(LogError):  # it was taken over
            await log.append(PAYLOAD)
        await log.abandon()
        (ledger_id,) = another.writer.own_ledgers
        member = (await client.describe(ledger_id)).last_fragment.bookies[0]
        await cluster.of(member).stop()
        await asyncio.gather(*(another.append(PAYLOAD) for _ in range(10)))
        await another.close()
        cluster.hub.cut()
        reading = asyncio.create_task(tail.read_batch())
        await reached(
            cluster, lambda: moved(cluster, "dlog_read_interruptions_total"), "a read is cut off"
        )
        cluster.hub.heal()
        reading.cancel()
        await tail.close()


@happening
async def a_stranger_knocks(cluster: WholeCluster, _patch: pytest.MonkeyPatch) -> None:
    server = cluster.bookies[0].running.server
    async with cluster.client() as client:
        address = client.bookies.address(BookieId("bookie-0"))
        assert address is not None
        host, _, port = address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 100)
        await reached(cluster, lambda: server.refusals > 0, "it is shown out")
        writer.close()


@happening
async def a_reader_takes_nothing(cluster: WholeCluster, _: pytest.MonkeyPatch) -> None:
    async with cluster.client() as client:
        writer = await client.create(Quorum(3, 3, 3))
        await writer.add(bytes(8_000_000))
        metadata = await writer.close()
        name = metadata.fragments[0].bookies[0]
        server = cluster.of(name).running.server
        address = client.bookies.address(name)
        assert address is not None
        async with greeted(address, Purpose.ASKS, name) as peer:
            query = ReadQuery(writer.ledger_id, metadata.access_key, 0, 0)
            for number in range(1, 9):
                peer.send(FrameKind.READ, number, read_request(query))
            await reached(cluster, lambda: server.backlog.unsent_bytes > 0, "it is full")


@happening
async def a_tenant_is_held_up(cluster: WholeCluster, _: pytest.MonkeyPatch) -> None:
    async with cluster.client() as client:
        quota = Quota(Subject.LOGS, "*", append_entries_s=1)
        cluster.seen.look()
        for name in ("bookie-0", "bookie-1", "bookie-2", "bookie-3"):
            server = cluster.of(BookieId(name)).running.server
            server.delays = QuotaThrottle(client.store, client.ledgers)
            server.delays.treasury.learn_quotas(Quotas((quota,)))
        writer = await client.create(Quorum(4, 4, 1))
        await asyncio.gather(*(writer.add(PAYLOAD) for _ in range(20)))
        await reached(cluster, lambda: moved(cluster, "dlog_bookie_delayed_seconds_total"), "late")


@happening
async def a_right_is_missing(cluster: WholeCluster, _: pytest.MonkeyPatch) -> None:
    name = BookieId("bookie-0")
    async with cluster.client() as client:
        guard = Authorizer(client.store, client.ledgers, bookie=name)
        cluster.of(name).running.server.guard = guard
        cluster.seen.look()
        one = Grant("cn:somebody", Role.READER, "*")
        await change_rules(client.store, lambda rules: rules.granted(one), by="the test")
        await guard.start()
        cluster.seen.look()
        answer = await client.environment.transport.read(name, ReadQuery(0, b"", 0, 0))
        assert answer.status is Status.ACCESS_DENIED
        cluster.seen.look()


@happening
async def a_bookie_lies(cluster: WholeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three gives other bytes than it was given, one gives nothing."""
    async with cluster.client() as client:
        writer = await client.create(Quorum(3, 3, 2))
        for _ in range(4):
            await writer.add(PAYLOAD)
        metadata = await writer.close()
        first, second, _ = metadata.last_fragment.bookies
        await cluster.of(second).stop()
        honest = client.environment.transport.read

        async def read(bookie: BookieId, query: ReadQuery) -> ReadAnswer:
            answer = await honest(bookie, query)
            lies = bookie == first and bool(answer.entries)
            return replace(answer, frames=b"y" * len(answer.frames)) if lies else answer

        monkeypatch.setattr(client.environment.transport, "read", read)
        reader = await client.open_no_recovery(writer.ledger_id)
        assert len(await reader.read(0, 3)) == 4
        await reader.close()


async def written(
    client: LedgerClient, quorum: Quorum, count: int = 40, ledgers: int = 1
) -> list[tuple[LedgerId, LedgerMetadata]]:
    """Write ledgers beside each other, so that their entries share entry logs."""
    writers = [await client.create(quorum) for _ in range(ledgers)]
    for _ in range(count):
        await asyncio.gather(*(writer.add(4 * PAYLOAD) for writer in writers))
    return [(writer.ledger_id, await writer.close()) for writer in writers]


@happening
async def entries_are_read_from_a_disk(cluster: WholeCluster, _: pytest.MonkeyPatch) -> None:
    bookie, name = cluster.bookies[0], BookieId("bookie-0")
    async with cluster.client() as client:
        ((ledger_id, metadata),) = await written(client, Quorum(4, 4, 2), count=80)
        await bookie.checkpoint()
        read = partial(client.read_replica, ledger_id, name, metadata=metadata)
        for entry in (*range(80), 0, 0, 79):
            await read(entry, 79, bytes_max=1)
        while not moved(cluster, "dlog_bookie_disk_reads"):
            await asyncio.gather(*(read(entry, entry) for entry in range(80)))


@happening
async def a_disk_rots(cluster: WholeCluster, _: pytest.MonkeyPatch) -> None:
    bookie, name = cluster.bookies[0], BookieId("bookie-0")
    async with cluster.client() as client:
        ((ledger_id, metadata),) = await written(client, Quorum(4, 4, 2), count=20)
        await bookie.checkpoint()
        for log in bookie.config.directory.rglob(f"*{SUFFIX}"):
            log.write_bytes(log.read_bytes().replace(PAYLOAD, PAYLOAD[:-1] + b"?"))
        await written(client, Quorum(4, 4, 2), count=20)
        await bookie.checkpoint()  # what the one before wrote is no more in memory
        with suppress(LogError):
            await client.read_replica(ledger_id, name, 0, 19, metadata=metadata)
        cluster.seen.look()


@happening
async def garbage_is_collected(cluster: WholeCluster, _patch: pytest.MonkeyPatch) -> None:
    bookie = cluster.bookies[0]
    everywhere = Quorum(4, 4, 2)
    async with cluster.client() as client:
        ids = []
        for _ in range(4):
            ids += [ledger_id for ledger_id, _ in await written(client, everywhere, 20, ledgers=2)]
            await bookie.checkpoint()
            await client.delete(ids[-1])
        collector = bookie.running.collector
        await collector.collect()
        await collector.compact(major=True)
        for untraced in ids[0:6:2]:
            await client.store.delete(client.ledgers._path(untraced))
        await collector.collect()
        cluster.seen.look()
        await moved_away(cluster, client)
        cluster.hub.cut()
        await reached(
            cluster, lambda: bool(bookie.running.registrar.trouble), "its registration is gone"
        )
        assert bookie.exposed.readiness().state == "not registered"
        assert not bookie.exposed.readiness().ready
        await collector.collect()
        cluster.hub.heal()
        await reached(
            cluster, lambda: not bookie.running.registrar.trouble, "it is registered again"
        )


async def moved_away(cluster: WholeCluster, client: LedgerClient) -> None:
    """A ledger is moved from a bookie to another one, and the copy that is left goes."""
    ((ledger_id, metadata),) = await written(client, Quorum(3, 3, 2), count=2)
    members = metadata.last_fragment.bookies
    (spare,) = {BookieId(f"bookie-{at}") for at in range(4)} - set(members)
    changed = metadata.replaced(0, 0, members[0], spare)
    assert isinstance(changed, LedgerMetadata)
    _, version = await client.ledgers.read(ledger_id)
    await client.ledgers.write(ledger_id, changed, version)
    left = cluster.of(members[0])
    collector = left.running.collector

    async def is_gone() -> bool:
        left.running.service.checkpoint_soon()  # what is not on disk is not evicted
        await collector.collect(allowed=-1, evictions_allowed=-1)
        return collector.totals.evicted > 0

    await eventually(is_gone, "the copy is evicted")


@happening
async def disks_are_full(cluster: WholeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """And an operator makes a bookie read-only."""
    bookie = cluster.bookies[0]
    async with cluster.client() as client:
        writer = await client.create(Quorum(4, 4, 2))
        await bookie.running.keeper.set_by_operator(read_only=True)
        await bookie.running.keeper.set_by_operator(read_only=False)
        with monkeypatch.context() as full:
            full.setattr(RealDisk, "usage", lambda _: DiskUsage(1000, 0))

            def is_full() -> bool:
                found = bookie.exposed.readiness()
                told = any("100.0% full" in reason for reason in found.reasons)
                return told and (found.ready, found.state) == (True, "read-only")

            await reached(cluster, is_full, "it serves reads, and says why no more")
        await reached(cluster, lambda: not bookie.running.storage.read_only, "it is writable")

        own, preallocated = bookie.config.directory, RealFile.preallocate

        def preallocate(file: RealFile, size_bytes: int) -> None:
            place = Path(f"/proc/self/fd/{file._descriptor}").readlink()
            if place.is_relative_to(own):  # the writer needs the others
                raise disk_error(errno.ENOSPC, file.path)
            preallocated(file, size_bytes)

        (journal,) = bookie.running.storage.journal_writers
        with monkeypatch.context() as full:
            full.setattr(RealFile, "preallocate", preallocate)
            while not journal.is_full:
                await writer.add(PAYLOAD)
            await cluster.seen.until("dlog_bookie_journal_full", "0", 1)
        await reached(cluster, lambda: not journal.is_full, "there is space again")
        await writer.abandon()


@happening
async def a_disk_is_slow(cluster: WholeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    journals = [each.running.storage.journal_writers[0] for each in cluster.bookies]
    is_quick, sync = threading.Event(), RealFile.sync

    def slow(file: RealFile) -> None:
        is_quick.wait()
        sync(file)

    async with cluster.client() as client:
        writer = await client.create(Quorum(4, 4, 2))
        await writer.add(PAYLOAD)  # by now all are connected
        with monkeypatch.context() as slowly:
            slowly.setattr(RealFile, "sync", slow)
            adding = writer.add(PAYLOAD)
            try:
                await reached(
                    cluster,
                    lambda: any(journal.queued_bytes for journal in journals),
                    "an add waits for a sync",
                )
            finally:
                is_quick.set()
        await adding
        await writer.abandon()


@happening
async def a_loss_is_accepted(cluster: WholeCluster, _: pytest.MonkeyPatch) -> None:
    bookie = cluster.bookies[0]
    await bookie.stop()
    directories = Directories.single(RealDisk(bookie.config.directory))
    directories.lock()
    accept_loss(directories, "its disk burned")
    directories.unlock()
    await bookie.start()
    cluster.seen.look()


@happening
async def copies_are_lost_and_made_again(
    cluster: WholeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair_metrics, "COUNT_S", 0.01)
    monkeypatch.setattr(repair_process, "keep_reporting", partial(keep_reporting, every_s=0.02))
    exposed = Exposed()
    cluster.seen.watch(exposed)
    config = AutorecoveryConfig(
        audit=AuditConfig(delay_s=0.0, retry_s=0.05),
        work=WorkerConfig(look_s=0.05, bytes_per_s=200 * len(PAYLOAD)),
    )
    async with cluster.client() as client:
        await written(client, Quorum(3, 3, 2), count=20, ledgers=4)
        repairing = asyncio.create_task(run_autorecovery(client, config, exposed))
        await asyncio.sleep(0)
        cluster.seen.look()  # nothing is done yet
        try:
            await its_work(cluster, client, exposed)
        finally:
            repairing.cancel()
            await asyncio.gather(repairing, return_exceptions=True)


async def its_work(cluster: WholeCluster, client: LedgerClient, exposed: Exposed) -> None:
    await reached(cluster, lambda: exposed.readiness().ready, "it shows itself")
    worker, counts = repair_of(exposed).worker, repair_of(exposed).auditor.counts
    await reached(cluster, lambda: counts.leads and counts.passes > 0, "there is an auditor")
    await reached(cluster, lambda: counts.checks.total() > 0, "a check is finished")
    await cluster.bookies[0].stop()
    await reached(cluster, lambda: worker.outcomes[RepairOutcome.DONE] > 0, "a ledger is repaired")
    await reached(
        cluster, lambda: moved(cluster, "dlog_repair_rate_bytes_per_second"), "a rate is reported"
    )
    await set_throttle(client.store, RepairThrottle(bytes_per_s=0.0))
    await reached(cluster, lambda: worker.pace.bytes_per_s == 0, "the throttle is heeded")
    marks = Marks(client.store)
    await cluster.bookies[1].stop()
    await reached(cluster, lambda: worker.deferred > 0, "what has nowhere to go is deferred")
    await marks.disable(now_ms=now_ms())
    await reached(cluster, lambda: not worker.enabled, "it rests")
    await marks.enable()
    await reached(cluster, lambda: worker.enabled, "it works again")
    await cluster.bookies[2].stop()
    await reached(cluster, lambda: counts.alarm, "too much is lost")
    with suppress(NodeExists):  # there may have been no check of it all yet
        await client.store.create(CheckRecord.path)
    await client.store.set(CheckRecord.path, b"damaged")
    await cluster.bookies[2].start()
    await reached(cluster, lambda: counts.failures.total() > 0, "a pass fails")
    cluster.hub.cut()
    await reached(cluster, lambda: worker.interruptions > 0, "the worker is cut off")
    cluster.hub.heal()


@happening
async def leaders_come_and_go(cluster: WholeCluster, _: pytest.MonkeyPatch) -> None:
    async with cluster.client() as client:
        first, second = [await Standby.open("led", lambda _: None, client=client) for _ in range(2)]
        await first.promote()
        promoting = asyncio.create_task(second.promote())
        assert first._term is not None
        await reached(
            cluster, lambda: first._term is not None and first._term.followers > 0, "it is followed"
        )
        assert first._term._lifeline is not None
        first._term._lifeline.close()  # as the end of its process would
        await promoting
        cluster.hub.cut()
        await reached(cluster, second.lost.is_set, "leadership is lost")
        cluster.hub.heal()
        for each in (first, second):
            with suppress(LogError):
                await each.close()


@happening
async def a_janitor_works(cluster: WholeCluster, _: pytest.MonkeyPatch) -> None:
    async with cluster.client() as client:
        log = await Log.open("kept", client=client)
        for _round in range(3):
            await log.append(PAYLOAD)
            await log.roll()
        await log.close()
        consumer = await Log.consumer("slow", "kept", start=0, client=client)
        await consumer.close()
        await left_by_its_leader(client, "left")
        await update_settings("kept", {"retention_bytes": 1}, client=client)
        orphan = await client.create(custom=stamp("old", "0123", 1))
        await orphan.close()
        async with Janitor(client, JanitorConfig(interval_s=0.01, elect=False)) as janitor:
            await janitor.next_pass()
            await client.store.create("/logs/damaged", b"damaged")
            await reached(
                cluster, lambda: moved(cluster, "dlog_janitor_troubles_total"), "it meets trouble"
            )
            cluster.hub.cut()
            await reached(
                cluster, lambda: moved(cluster, "dlog_janitor_failures_total"), "a pass fails"
            )
            cluster.hub.heal()


@happening
async def an_archiver_works(cluster: WholeCluster, _: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory() as directory:
        async with cluster.client() as client:
            async with await Log.open("archived", client=client) as log:
                await log.append(PAYLOAD)
            settings = LogSettings(archive=f"file://{directory}/objects", archive_table="parquet")
            # By itself: the cluster of these happenings stays at its level.
            await ManifestNode(client.store, "archived").edit(
                lambda manifest: replace(manifest, settings=settings)
            )
            async with Archiver(client, ArchiverConfig(interval_s=0.01, elect=False)) as archiver:
                await archiver.next_pass()
                await restore_segments("archived", client=client)
                await client.store.create("/logs/unreadable", b"unreadable")
                await reached(
                    cluster,
                    lambda: moved(cluster, "dlog_archiver_troubles_total"),
                    "it meets trouble",
                )
            await client.store.delete("/logs/unreadable")


@happening
async def a_browser_looks(cluster: WholeCluster, _: pytest.MonkeyPatch) -> None:
    exposed = Exposed()
    exposed.add(console_metrics.METRICS)
    cluster.seen.watch(exposed)
    cluster.seen.look()
    async with (
        cluster.client() as client,
        console(client, ConsoleOptions(round_s=0.05)) as found,
        httpx.AsyncClient(timeout=PATIENCE_S) as browser,
    ):
        assert (await browser.get(found.login, follow_redirects=True)).status_code == 200
        await reached(cluster, lambda: moved(cluster, "dlog_console_poll_seconds"), "it has asked")


@happening
async def a_kafka_client_produces_and_a_gateway_dies(
    cluster: WholeCluster, _: pytest.MonkeyPatch
) -> None:
    # At the highest level, which its batches need.
    async with dlog.testing.cluster() as made, AsyncExitStack() as stack:
        client, other = [await LedgerClient.connect(made.uri, PATIENT) for _ in range(2)]
        stack.push_async_callback(client.close)
        stack.push_async_callback(other.close)
        dying = Gateway(other, GatewayOptions(port=0))
        async with gateway(client, GatewayOptions(port=0)) as running:
            exposed = Exposed()
            exposed.add(kafka_metrics.METRICS, running)
            cluster.seen.watch(exposed)
            cluster.seen.look()
            await dying.start()
            await reached(
                cluster, lambda: len(running.membership.view.gateways) == 2, "it sees the other"
            )
            assert dying.membership._lifeline is not None
            assert dying.membership._running is not None
            dying.membership._running.cancel()
            dying.membership._lifeline.close()
            await (
                dying.listener.stop()
            )  # else clients are served by it, as it is listed for a while
            await reached(
                cluster, lambda: len(running.membership.view.gateways) == 1, "it sees its death"
            )
            await asyncio.to_thread(CONFLUENT.produce, running.address, "kafka", [PAYLOAD])
            await asyncio.to_thread(CONFLUENT.consume, running.address, "kafka", 0, 1)
            member = ConfluentConsumer(running.address, "kafka", "metered", "range")
            await reached(cluster, lambda: running.coordinator.rebalances > 0, "it is formed")
            await running.survey.look()
            cluster.seen.look()
            await until(lambda: bool(member.seen), "it has consumed")
            await asyncio.to_thread(member.stop)
            await asyncio.to_thread(CONFLUENT.produce, running.address, "kafka", [PAYLOAD])
            await running.survey.look()
            cluster.seen.look()
            reader, writer = await asyncio.open_connection(running.host, running.port)
            frame = request_frame(FETCH, 4, {"topics": [{"topic": "none", "partitions": [{}]}]})
            writer.write(len(frame).to_bytes(4, "big") + frame)
            await reached(cluster, lambda: bool(running.records.errors), "it has no such topic")
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await reached(cluster, lambda: running.listener.refusals > 0, "it is no request")
            writer.close()
            await reader.read()
        await dying.stop()


@happening
async def a_client_fails_to_authenticate_at_a_gateway(
    cluster: WholeCluster, _: pytest.MonkeyPatch
) -> None:
    async with dlog.testing.cluster() as made, AsyncExitStack() as stack:
        client = await LedgerClient.connect(made.uri, PATIENT)
        stack.push_async_callback(client.close)
        with TemporaryDirectory() as folder:
            keys = Path(folder) / "keys.json"
            keys.write_text(json.dumps(TOKEN_KEYS))
            provider = TokenSettings("https://id", "kafka", str(keys))
            sasl = SaslSettings(tokens=provider, without_tls=True)
            async with gateway(client, GatewayOptions(port=0, sasl=sasl)) as running:
                exposed = Exposed()
                exposed.add(kafka_metrics.METRICS, running)
                cluster.seen.watch(exposed)
                cluster.seen.look()
                reader, writer = await asyncio.open_connection(running.host, running.port)
                await reached(
                    cluster, lambda: bool(running.listener.unauthenticated), "it is not known"
                )
                keys.unlink()
                verifier = running.authenticator._verifier
                assert verifier is not None
                with suppress(KeysUnavailable):
                    await verifier._refresh()
                quota = Quota(Subject.IDENTITY, "client:*", append_entries_s=1)
                running.throttle.learn(Quotas((quota,)))
                for size in (1, 1, 1):
                    running.throttle.produced(ClientSession("", "", ""), "log", size)
                frame = request_frame(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
                writer.write(len(frame).to_bytes(4, "big") + frame)
                await reader.read()
                writer.close()
                cluster.seen.look()


@happening
async def a_replica_applies(cluster: WholeCluster, patch: pytest.MonkeyPatch) -> None:
    class Count(StateMachine):
        count = 0

        def apply(self, command: Command) -> int:
            self.count += len(command.payload)
            return self.count

        def snapshot(self, out: BinaryIO) -> None:
            out.write(b"%d" % self.count)

        def restore(self, source: BinaryIO) -> None:
            self.count = int(source.read())

    with TemporaryDirectory() as snapshots:
        async with cluster.client() as client:
            for count in (1, 2):
                async with await Replica.open(
                    "replicated", Count(), snapshots=snapshots, client=client
                ) as replica:
                    assert await replica.wait_role("leader", timeout_s=PATIENCE_S)
                    assert await replica.submit(b"x") == count
                    await replica.snapshot()
                    cluster.seen.look()
            async with (
                Replica.open("replicated", Count(), client=client) as replica,
                Replica.open("replicated", Count(), client=client) as follower,
            ):
                assert await replica.wait_role("leader", timeout_s=PATIENCE_S)
                assert await follower.submit(b"x", forward=True, timeout_s=PATIENCE_S) == count + 1
                patch.setattr(client_table, "CLIENTS_MAX", 1)
                assert await replica.submit(b"x", request_id=("a", 1)) == count + 2
                cluster.seen.look()


async def left_by_its_leader(client: LedgerClient, log: str) -> None:
    term = await patient_campaign(client.store, log, candidate="gone")
    writer = await Log.open(log, client=client, term=term)
    await writer.append(PAYLOAD)
    await writer.abandon()
    await term.resign()


async def reached(cluster: WholeCluster, condition: Callable[[], bool], what: str) -> None:
    """Wait until *condition* holds, and look before it passes."""
    await until(condition, what)
    cluster.seen.look()


def moved(cluster: WholeCluster, name: str) -> bool:
    return len(cluster.seen.values.get(name, ())) > 1
