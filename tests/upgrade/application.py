"""A program that uses dlog, whichever release is installed: it writes a log, or reads one.

    python application.py write LOG FIRST     appends FIRST, FIRST + 1, ... until stdin says how
    python application.py read LOG            reads from the begin to the record "end"

What stdin says is "stop", or "end", which appends that record. How far it is stands on stdout: "at
N" now and then, "done N" at the end. Whatever goes wrong ends it with 1. The namespace is DLOG_URI.
"""

import sys
import threading
from typing import Final

from dlog import Log

PAUSE_S: Final = 0.002
EVERY: Final = 20
END: Final = b"end"


def say(what: str, number: int) -> None:
    sys.stdout.write(f"{what} {number}\n")
    sys.stdout.flush()


def write(name: str, number: int) -> None:
    told: list[str] = []
    stop = threading.Event()

    def listen() -> None:
        told.append(sys.stdin.readline().strip())
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    with Log.open(name) as log:
        while not stop.wait(PAUSE_S):
            log.append(b"%d" % number)
            number += 1
            if number % EVERY == 0:
                say("at", number)
        if told == ["end"]:
            log.append(END)
    say("done", number)


def read(name: str) -> None:
    wanted = 0
    with Log.tail(name, start="start") as reader:
        for record in reader:
            if record.value == END:
                break
            found = (record.offset, int(record.value))
            if found != (wanted, wanted):
                sys.exit(f"offset and number are {found}, and {wanted} was to come")
            wanted += 1
            if wanted % EVERY == 0:
                say("at", wanted)
    say("done", wanted)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], int(sys.argv[3]))
    else:
        read(sys.argv[2])
