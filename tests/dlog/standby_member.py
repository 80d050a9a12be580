"""A process that leads and follows as it is told, line by line; it answers with JSON lines.

Call: python -m tests.dlog.standby_member URI
"""

import json
import sys
import time
from collections.abc import Sequence

from dlog import Log, Record, Standby
from tests.waiting import PATIENCE_S

LOG = "orders"


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, "at": time.monotonic(), **fields}), flush=True)


def main(uri: str) -> None:
    applied: list[int] = []

    def apply(batch: Sequence[Record]) -> None:
        applied.extend(int(record.value) for record in batch)

    log: Log | None = None
    with Standby.open(LOG, apply, uri=uri, lease_s=PATIENCE_S) as standby:
        say("following")
        for line in sys.stdin:
            match line.strip():
                case "promote":
                    log = standby.promote()
                    say("leading", applied=len(applied), epoch=log.epoch)
                case "append":
                    assert log is not None
                    for value in range(len(applied), len(applied) + 100):
                        log.append(b"%d" % value)
                        applied.append(value)
                    say("appended", applied=len(applied))
                case "resign":
                    say("resigning")
                    standby.resign()
                    say("resigned")
                case "dump":
                    say("applied", values=applied)
                case _:
                    return


if __name__ == "__main__":
    main(sys.argv[1])
