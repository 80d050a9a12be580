"""`make chaos-archive`: a log moves to an S3 while all that takes part in it fails.

    python -m tests.integration.archive_chaos [--seconds 600] [--seed 1] [--directory DIR]

One writer appends numbered records and opens the log again whenever it lost it; two processes of
`dlog archiver run` move its segments to Moto's S3, behind a proxy that refuses, breaks and tears
requests or serves nothing at all; `dlog log restore-local` brings some back to bookies; readers
read it from the start. Archivers, restorers and readers are killed, bookies are killed and started
again, the log is truncated. In the end all is healed, and each record is in the log once and in
order from its first offset on, the audit finds nothing that is lost or of no use, and the bucket
has the objects that the log needs, and no others.
"""

import argparse
import asyncio
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import pytest

from dlog.aio import Log
from dlog.aio.admin import (
    archive_log,
    audit_namespace,
    create_log,
    log_info,
    restore_segments,
    truncate_log,
    verify_log,
)
from dlog.archive.object_store import open_folder
from dlog.archive.segment_index import all_segments
from dlog.errors import Trimmed
from dlog.local.cluster import LocalCluster
from dlog.settings import LogSettings
from ledger.errors import LogError
from tests.dlog.archive.s3_server import BUCKET, FaultyS3, s3

LOG: Final = "orders"
VALUE_BYTES: Final = 2000
IN_FLIGHT: Final = 20
RATES: Final = (0.0, 0.05, 0.2, 1.0)
HEAL_S: Final = 120.0


@dataclass(slots=True)
class Run:
    uri: str
    storage: FaultyS3
    cluster: LocalCluster
    until_s: float
    random: Random
    start_s: float = 0.0
    """How long a command takes that does next to nothing: a machine may be slow."""
    acknowledged: int = -1
    """The txid of the last record that is in the log for certain."""
    done: Counter[str] = field(default_factory=Counter)
    """What happened, and how often."""

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.until_s


def value(number: int) -> bytes:
    return b"%012d" % number + bytes(VALUE_BYTES - 12)


async def write(run: Run) -> None:
    """Append record after record; one whose outcome is not known is looked for when the log is
    opened again."""
    while run.goes_on:
        try:
            async with await Log.open(LOG, uri=run.uri) as log:
                run.done["opened"] += 1
                number = -1 if log.last_txid is None else log.last_txid
                assert number >= run.acknowledged, f"{run.acknowledged} is lost: {number}"
                while run.goes_on:
                    for _ in range(IN_FLIGHT):
                        number += 1
                        log.append_async(value(number), txid=number)
                    await log.flush()
                    run.done["appended"] += number - run.acknowledged
                    run.acknowledged = number
        except LogError as error:
            run.done[f"writer: {type(error).__name__}"] += 1


async def read(run: Run) -> None:
    """Read all there is, again and again; some readings are given up."""
    while run.goes_on:
        limit = run.random.choice((10, 1000, 1 << 30))
        try:
            await check_all(run, limit)
            run.done["read"] += 1
        except Trimmed:
            run.done["reader: Trimmed"] += 1
        except LogError as error:
            if not error.retryable:
                raise
            run.done[f"reader: {type(error).__name__}"] += 1


async def check_all(run: Run, limit: int = 1 << 30) -> int:
    """Read the log from its start; return how many records there are."""
    count, expected = 0, None
    async with await Log.tail(LOG, start="start", follow=False, uri=run.uri) as reader:
        async for record in reader:
            assert record.txid == record.offset, "each record once"
            assert expected in {None, record.offset}, f"{record.offset} after {expected}"
            assert record.value == value(record.offset)
            expected, count = record.offset + 1, count + 1
            if count == limit:
                break
    return count


async def process(run: Run, *command: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dlog.cli", *command),
        env={**os.environ, "DLOG_URI": run.uri, "DLOG_AUDIT": "off"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )


async def killed_again_and_again(run: Run, what: str, *command: str) -> None:
    """Run a process, kill it some time later, and so on."""
    while run.goes_on:
        running = await process(run, *command)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(run.start_s + run.random.uniform(0.0, 10.0)):
                    await running.wait()
                    run.done[f"{what} ended"] += 1
        finally:
            if running.returncode is None:
                running.kill()
                run.done[f"{what} killed"] += 1
            await running.wait()


async def disturb(run: Run) -> None:
    """Change how the storage fails, kill a bookie and start it again, truncate."""
    while run.goes_on:
        run.storage.rate = run.random.choice(RATES)
        run.done[f"storage fails at {run.storage.rate}"] += 1
        await asyncio.sleep(run.random.uniform(0.5, 4.0))
        match run.random.randrange(4):
            case 0:
                index = run.random.randrange(3)
                run.cluster.kill_bookie(index)
                run.done["bookie killed"] += 1
                await asyncio.sleep(run.random.uniform(0.1, 2.0))
                await run.cluster.restart_bookie(index)
            case 1 if run.acknowledged > 0:
                with suppress(LogError):
                    first = (await log_info(LOG, uri=run.uri)).manifest.trim_offset
                    before = first + (run.acknowledged - first) // 4
                    await truncate_log(LOG, before=before, uri=run.uri)
                    run.done["truncated"] += 1
            case _:
                pass


async def judge(run: Run) -> None:
    """Heal all, archive what is left, and compare."""
    run.storage.rate = 0.0
    deadline = time.monotonic() + HEAL_S
    while True:
        try:
            await restore_segments(LOG, keep_s=0, uri=run.uri)
            report = await archive_log(LOG, at_once=True, uri=run.uri)
            if not (report.did_something or report.copies_dropped):
                break
        except LogError as error:
            run.done[f"healing: {type(error).__name__}"] += 1
        assert time.monotonic() < deadline, "it does not come to rest"
    manifest = (await log_info(LOG, uri=run.uri)).manifest
    assert await check_all(run) == manifest.sealed_end - manifest.trim_offset
    assert manifest.sealed_end > run.acknowledged, "what was acknowledged is there"
    verified = await verify_log(LOG, uri=run.uri)
    assert verified.healthy, verified.problems
    swept = await audit_namespace(repair=True, uri=run.uri)  # copies that nobody has listed
    run.done["orphan ledgers"] = len(swept.orphans)
    audited = await audit_namespace(uri=run.uri)
    assert (audited.healthy, audited.pending, audited.ledgers) == (True, (), 0), audited
    needed = {each.index.name for each in manifest.runs}
    async for segment in all_segments(LOG, manifest):
        assert not segment.location.on_bookies
        assert segment.location.object is not None
        needed.add(segment.location.object.name)
    left = set(await open_folder(manifest.storage).names())
    assert left == needed, f"of no segment: {left - needed}; missing: {needed - left}"
    run.done["segments"] = manifest.segment_count
    run.done["rounds of local copies"] = manifest.copy_round
    run.done["objects"] = len(left)


async def chaos(seconds: float, seed: int, directory: Path) -> Counter[str]:
    """Run all of it; return what happened. Raises AssertionError if something is wrong."""
    with pytest.MonkeyPatch.context() as patch, s3(patch, seed=seed) as storage:
        async with LocalCluster(directory / "cluster", bookies=4) as cluster:
            settings = LogSettings(archive=f"s3://{BUCKET}/logs", roll_records=200)
            await create_log(LOG, settings=settings, uri=cluster.uri)
            until_s = time.monotonic() + seconds
            run = Run(cluster.uri, storage, cluster, until_s, Random(seed))
            began = time.monotonic()
            assert await (await process(run, "log", "list")).wait() == 0
            run.start_s = time.monotonic() - began
            archiver = ("archiver", "run", "--interval", "0.5", "--no-elect")
            async with asyncio.TaskGroup() as group:
                group.create_task(write(run))
                group.create_task(read(run))
                group.create_task(disturb(run))
                for number in (1, 2):
                    name = f"archiver {number}"
                    group.create_task(killed_again_and_again(run, name, *archiver))
                restorer = ("log", "restore-local", LOG, "--keep", "20s")
                group.create_task(killed_again_and_again(run, "restorer", *restorer))
                tail = ("log", "tail", LOG, "--start", "0", "--follow")
                group.create_task(killed_again_and_again(run, "reader", *tail))
            await judge(run)
            run.done.update(storage.seen)
            return run.done


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.integration.archive_chaos")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=None)
    options = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="chaos-archive-") as directory:
        done = asyncio.run(chaos(options.seconds, options.seed, Path(directory)))
    for what, count in sorted(done.items()):
        print(f"{what:40} {count:9,}")
    print("each record once and in order; no object without a segment, no segment without bytes")


if __name__ == "__main__":
    main()
