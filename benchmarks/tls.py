"""What TLS costs: appends and reads of a log on a cluster of this machine, without and with it.

Paired, in turn, so that what the machine does besides meets both alike; the last line has the
medians of TLS as shares of those without it.

    python -m benchmarks.tls [--rounds 2] [--megabytes 60] [--directory DIR]
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from dlog.aio import Log
from dlog.local.cluster import LocalCluster
from ledger.client import ClientConfig, LedgerClient

RECORD_BYTES = 1000
LONE = 300
AT_ONCE = 500


async def measure(directory: Path, *, tls: bool, megabytes: int) -> tuple[float, float, float]:
    """Return the median of lone appends in ms, and MB/s of appends and of reads."""
    async with LocalCluster(directory, tls=tls) as cluster:
        client = await LedgerClient.connect(cluster.uri, ClientConfig(tls=cluster.client_tls))
        log = await Log.open("speed", client=client)
        payload = bytes(RECORD_BYTES)
        lone = []
        for _ in range(LONE):
            began = time.perf_counter()
            await log.append(payload)
            lone.append(time.perf_counter() - began)
        batches = megabytes * 1_000_000 // (RECORD_BYTES * AT_ONCE)
        began = time.perf_counter()
        for _ in range(batches):
            await log.append_many([payload] * AT_ONCE)
        append_s = time.perf_counter() - began
        await log.close()
        began, read = time.perf_counter(), 0
        tail = await Log.tail("speed", client=client, start="start", follow=False)
        async for _ in tail:
            read += 1
        read_s = time.perf_counter() - began
        await tail.close()
        await client.close()
    volume = batches * AT_ONCE * RECORD_BYTES / 1e6
    return statistics.median(lone) * 1000, volume / append_s, read * RECORD_BYTES / 1e6 / read_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=60)
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    arguments = parser.parse_args()
    print(f"{'':6} {'lone append':>12} {'appends':>11} {'reads':>11}")
    found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    for _ in range(arguments.rounds):
        for tls in (False, True):
            with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
                work = measure(Path(name), tls=tls, megabytes=arguments.megabytes)
                lone_ms, append, read = asyncio.run(work)
            found[tls].append((lone_ms, append, read))
            kind = "TLS" if tls else "plain"
            print(f"{kind:6} {lone_ms:9.2f} ms {append:6.1f} MB/s {read:6.1f} MB/s", flush=True)
    plain, secured = (
        [statistics.median(each) for each in zip(*found[tls], strict=True)] for tls in (False, True)
    )
    shares = [ours / theirs for theirs, ours in zip(plain, secured, strict=True)]
    print(f"{'ratio':6} {shares[0]:12.2f} {shares[1]:11.2f} {shares[2]:11.2f}")


if __name__ == "__main__":
    main()
