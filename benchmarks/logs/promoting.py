"""A standby takes over from a leader that is killed while it appends as fast as it can.

    python -m benchmarks.logs.promoting URI        the leader: runs until it is killed

What the promotion is made of comes from the metrics of the standby's process. Application code
costs nothing here: a standby's `apply` counts.
"""

import asyncio
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

import dlog.metrics as counted
from benchmarks import ledger
from benchmarks.logs.bench import RECORD_BYTES, Bench
from dlog.aio import Standby
from dlog.position import Record, RecordId

_LOG: Final = "led at full speed"
_BURST: Final = 1000
_BURSTS_PENDING: Final = 80
_AIM_MS: Final = 200.0


async def promotion(bench: Bench, on: ledger.Bench) -> None:
    """Print medians: until elected, of each part of the takeover, of the rest, and of all."""
    runs = [await promoted(on.cluster.uri, bench.sizes.seconds) for _ in range(bench.sizes.samples)]
    for part in runs[0]:
        bench.note(f"promotion, {part}", median([run[part] for run in runs]) * 1e3, "ms")
    totals = [sum(run.values()) for run in runs]
    bench.at_most("promotion beside a writer at full speed", median(totals) * 1e3, "ms", _AIM_MS)


async def promoted(uri: str, seconds: float) -> dict[str, float]:
    """Return how long each part of one promotion took, in order."""
    leader = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, uri, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert leader.stdout is not None
        await leader.stdout.readline()
        async with await Standby.open(_LOG, lambda _: None, uri=uri, start="end") as standby:
            promoting = asyncio.ensure_future(standby.promote())
            await asyncio.sleep(seconds)
            counted.TAKEOVER_PART_S.values.clear()
            opened_before = counted.TAKEOVER_S.total
            promoted_before = counted.PROMOTION_S.total
            began = time.perf_counter()
            leader.send_signal(signal.SIGKILL)
            await promoting
            took = time.perf_counter() - began
        after_election = counted.PROMOTION_S.total - promoted_before
        opening = counted.TAKEOVER_S.total - opened_before
        parts = {"until elected": took - after_election}
        parts |= {f"takeover: {part}": s for (part,), s in counted.TAKEOVER_PART_S.values.items()}
        parts["takeover: the rest"] = opening - sum(counted.TAKEOVER_PART_S.values.values())
        return parts | {"applying what was left": after_election - opening}
    finally:
        if leader.returncode is None:
            leader.kill()
        await leader.wait()


async def lead(uri: str) -> None:
    """Append as fast as it goes, for as long as this process is left alive."""

    def apply(_: Sequence[Record]) -> None:
        pass

    payload = bytes(RECORD_BYTES)
    async with await Standby.open(_LOG, apply, uri=uri, start="end") as standby:
        log = await standby.promote()
        print("leads", flush=True)
        pending: deque[asyncio.Future[RecordId]] = deque()
        while True:
            pending.append([log.append_async(payload) for _ in range(_BURST)][-1])
            if len(pending) > _BURSTS_PENDING:
                await pending.popleft()


if __name__ == "__main__":
    asyncio.run(lead(sys.argv[1]))
