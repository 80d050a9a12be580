"""A process that stands for election and says what happens to it, one JSON object a line."""

import asyncio
import json
import sys
import time

from leader import campaign
from ledger.metastore import open_store


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, "at": time.monotonic(), **facts}), flush=True)


async def main(uri: str, log: str, candidate: str, session_timeout_s: float) -> None:
    store = await open_store(uri, session_timeout_s=session_timeout_s, timeout_s=30.0)
    lease_s = session_timeout_s / 2
    say("standing")
    term = await campaign(store, log, candidate=candidate, lease_s=lease_s)
    say("elected", epoch=term.epoch)
    believed_at = 0.0
    followed = False
    while term.is_current():
        believed_at = time.monotonic()
        if term.followers and not followed:
            followed = True
            say("followed")
        await asyncio.sleep(0.005)
    say("doubted", believed_at=believed_at)
    await term.lost.wait()
    say("lost", reason=term.lost_reason, verified=await term.verify())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])))
