"""A process with a replica that is told what to submit, line by line; it answers with JSON lines.

Call: python -m tests.dlog.replica_member URI NAME [SNAPSHOTS]; without snapshots it applies
nothing before it is told to "go".
"""

import json
import sys
import threading
from typing import BinaryIO

from dlog import Command, LogError, Replica, SnapshotPolicy, StateMachine
from tests.waiting import PATIENCE_S

LOG = "accounts"


class Ledger(StateMachine):
    """Keeps the number of each command that had an effect, in order."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.may_apply = threading.Event()

    def apply(self, command: Command) -> object:
        self.may_apply.wait()
        self.done.append(int(command.payload))
        return len(self.done)

    def snapshot(self, out: BinaryIO) -> None:
        out.write(json.dumps(self.done).encode())

    def restore(self, source: BinaryIO) -> None:
        self.done = json.load(source)


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def main(uri: str, name: str, snapshots: str | None = None) -> None:
    policy = SnapshotPolicy(every_records=50, truncate=True)
    machine = Ledger()
    if snapshots is not None:
        machine.may_apply.set()
    with Replica.open(
        LOG,
        machine,
        uri=uri,
        candidate=name,
        address=f"http://{name}",
        snapshots=snapshots,
        policy=policy,
        lease_s=PATIENCE_S,
    ) as replica:

        def announce() -> None:
            replica.wait_role("leader")
            say("leads", epoch=replica.epoch)

        threading.Thread(target=announce, daemon=True).start()
        say("open", applied=replica.applied)
        for line in sys.stdin:
            match line.split():
                case ["submit" | "forward" as how, number]:
                    try:
                        result = replica.submit(
                            number.encode(),
                            request_id=("client", int(number)),
                            timeout_s=PATIENCE_S,
                            forward=how == "forward",
                        )
                        say("result", number=int(number), result=result)
                    except LogError as error:
                        say("error", number=int(number), error=type(error).__name__)
                case ["role"]:
                    say("role", role=replica.role)
                case ["go"]:
                    machine.may_apply.set()
                case ["read"]:
                    say("done", numbers=replica.read(lambda ledger: list(ledger.done)))
                case _:
                    return


if __name__ == "__main__":
    main(*sys.argv[1:])
