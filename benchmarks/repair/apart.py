"""One audit or one check in a process of its own, so that its memory can be told: prints JSON.

Call: python -m benchmarks.repair.apart URI audit BOOKIE | check
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks.repair.counting import CountingStore
from bookie.autorecovery.auditor import audit
from bookie.autorecovery.checks import Audit, check_all
from bookie.autorecovery.protocol.audit import AuditConfig
from ledger.client import LedgerClient
from ledger.log_events import now_ms
from ledger.metastore import MetadataStore, open_store

_POLL_S: Final = 0.05


async def main(uri: str, what: str, lost: str) -> None:
    plain = await open_store(uri)
    store = CountingStore(plain)
    client = await LedgerClient.connect(store)
    session = store.session
    before, calls = _memory_bytes("VmRSS:"), store.calls.total()
    started, cpu = time.perf_counter(), time.process_time()
    found: dict[str, int]
    if what == "audit":
        found = await _audit(client, plain, lost)
    else:
        check = await check_all(client)
        found = {"ledgers": check.ledgers, "lacking": check.lacking, "unsure": check.unsure}
    told = {
        **found,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu,
        "calls": store.calls.total() - calls,
        "memory_bytes": before,
        "memory_peak_bytes": _memory_bytes("VmHWM:"),
        "sessions_lost": int(session.lost.is_set() or session is not store.session),
    }
    print(json.dumps(told), flush=True)
    await client.close()
    await plain.close()


async def _audit(client: LedgerClient, store: MetadataStore, lost: str) -> dict[str, int]:
    """Be the auditor until a pass has missed the bookie *lost*."""
    since_ms, stop = now_ms(), asyncio.Event()
    auditing = asyncio.create_task(audit(client, AuditConfig(delay_s=0), stop))
    while True:
        done, _ = await asyncio.wait({auditing}, timeout=_POLL_S)
        if done:
            raise AssertionError("the audit ended by itself") from auditing.exception()
        found = await Audit.last(store)
        if found is not None and found.at_ms >= since_ms and lost in found.lost:
            break
    stop.set()
    await auditing
    assert not found.alarm, found.alarm
    return {"ledgers": found.ledgers, "marked": found.marked}


def _memory_bytes(which: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(which)[2].split()[0]) * 1024


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], "".join(sys.argv[3:])))
