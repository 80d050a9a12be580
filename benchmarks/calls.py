"""What one lone warm append costs in Python calls: those of the client, and those of each bookie.

    python -m benchmarks.calls [--appends 200] [--files] [--record]

The client runs on the main thread and three bookies with disks in memory on the threads of
`dlog.testing`, so a call belongs to the client or to the bookies by its thread. After each append
the next one waits until nothing is called any more: the third bookie has answered. Counts hardly
depend on the machine or on what else it does. Those of today are in `calls.json`; the command fails
if one has grown by more than `GROWTH_MAX`. `--record` writes them.

A LAC that travels by itself is counted apart: amid a run of appends it leaves only if nothing is
added for a quiet moment, or if a reader waits. Appends after which it always leaves are counted
beside those after which it never does. The appends here are further apart than that moment, so it
is made longer: an append that follows no other closely costs as much as with a LAC. Whether a
bookie reads the LAC with other frames is chance, so what is recorded of it is the most seen.
"""

import argparse
import asyncio
import json
import math
import selectors
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Final
from unittest.mock import patch

import dlog
import dlog.testing
from dlog.aio import Log
from dlog.testing import bookie
from ledger import writer
from ledger.protocol.writer_events import PublishLac

APPENDS: Final = 200
PAYLOAD: Final = bytes(100)
GROWTH_MAX: Final = 0.10
PASSES: Final = "passes of the client's loop"
LAC: Final = "calls of the client with a LAC by itself"
LAC_AT_BOOKIE: Final = "calls of each bookie with a LAC by itself"
RECORDED: Final = Path(__file__).with_suffix(".json")
_WARM: Final = 100
_BOOKIES: Final = 3
_QUIET_S: Final = 0.005
_QUIET_LOOKS: Final = 2
"""Nothing was called between so many looks, and the one before them."""
_NEVER_S: Final = 3600.0
"""A checkpoint is in the way of no append, and its time is the machine's."""
_SOMETIMES: Final = 0.5
"""A file that is entered less often by an append is not in its way."""
_ROOT: Final = f"{Path(dlog.__file__).parents[1]}/"
_PACKAGES: Final = ("dlog/", "ledger/", "bookie/")

Calls = Mapping[str, float]
"""By file, of one append."""


class CallCounter:
    """Calls of functions of the product, by thread and code."""

    def __init__(self) -> None:
        self._client = threading.get_ident()
        self._threads: dict[int, Counter[CodeType]] = {}
        self._files: dict[CodeType, str] = {}
        self._before: dict[bool, Counter[str]] = {}

    def install(self) -> None:
        """Count what this thread and all that begin from now on call."""
        threading.setprofile(self._first)
        sys.setprofile(self._first)

    def uninstall(self) -> None:
        threading.setprofile(None)
        sys.setprofile(None)

    @property
    def total(self) -> int:
        return sum(counts.total() for counts in tuple(self._threads.values()))

    def begin(self) -> None:
        """Forget what was called up to here."""
        self._before = {client: self._by_file(client=client) for client in (True, False)}

    def since_begin(self, *, client: bool) -> Counter[str]:
        """Return calls by file, of the client's thread or of all others."""
        return self._by_file(client=client) - self._before[client]

    def _by_file(self, *, client: bool) -> Counter[str]:
        found: Counter[str] = Counter()
        for thread, counts in tuple(self._threads.items()):
            if (thread == self._client) is client:
                for code, calls in tuple(counts.items()):
                    if name := self._file(code):
                        found[name] += calls
        return found

    def _file(self, code: CodeType) -> str:
        name = code.co_filename.removeprefix(_ROOT)
        return name if name.startswith(_PACKAGES) else ""

    def _first(self, frame: FrameType, event: str, arg: object) -> None:
        """A thread has a counter of its own from its first event on."""
        counts = self._threads.setdefault(threading.get_ident(), Counter())
        counter = self._counter(counts)
        sys.setprofile(counter)
        counter(frame, event, arg)

    def _counter(self, counts: Counter[CodeType]) -> Callable[[FrameType, str, object], None]:
        files = self._files

        def count(frame: FrameType, event: str, _: object) -> None:
            if event != "call":
                return
            code = frame.f_code
            name = files.get(code)
            if name is None:
                name = files[code] = self._file(code)
            if name:
                counts[code] += 1

        return count


class PassCounter(selectors.DefaultSelector):
    """Counts the passes of its loop: each one selects once."""

    passes = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.passes += 1
        return super().select(timeout)


class LoneAppend:
    """What one append took, on average."""

    def __init__(self, client: Calls, bookie: Calls, passes: float) -> None:
        self.client, self.bookie, self.passes = client, bookie, passes

    def figures(self) -> dict[str, float]:
        """Return what is recorded, by name."""
        ways = [file for calls in (self.client, self.bookie) for file in calls]
        in_the_way = {
            file
            for file in ways
            if max(self.client.get(file, 0), self.bookie.get(file, 0)) >= _SOMETIMES
        }
        return {
            "calls of the client": round(sum(self.client.values()), 1),
            "calls of each bookie": round(sum(self.bookie.values()), 1),
            "files": len(in_the_way),
            PASSES: round(self.passes, 2),
        }


async def _appended(
    uri: str, appends: int, counter: CallCounter, loop_passes: PassCounter
) -> tuple[LoneAppend, LoneAppend]:
    async with await Log.open("calls", uri=uri) as log:
        for _ in range(_WARM):
            await log.append(PAYLOAD)
        with patch.object(writer, "PUBLISH_QUIET_S", _NEVER_S):
            lone = await _averaged(log, appends, counter, loop_passes)
        with patch.object(writer.LedgerWriter, "_publish_now", _publish_to_all):
            return lone, await _averaged(log, appends, counter, loop_passes)


def _publish_to_all(self: writer.LedgerWriter, effect: PublishLac) -> None:
    self._publish(effect, effect.bookies)


async def _averaged(
    log: Log, appends: int, counter: CallCounter, loop_passes: PassCounter
) -> LoneAppend:
    passes = 0
    await _quiet(counter)
    counter.begin()
    for _ in range(appends):
        before = loop_passes.passes
        await log.append(PAYLOAD)
        passes += loop_passes.passes - before
        await _quiet(counter)
    client = counter.since_begin(client=True)
    bookies = counter.since_begin(client=False)
    return LoneAppend(
        {file: calls / appends for file, calls in client.items()},
        {file: calls / appends / _BOOKIES for file, calls in bookies.items()},
        passes / appends,
    )


async def _quiet(counter: CallCounter) -> None:
    """Wait until nothing is called any more."""
    same, total = 0, -1
    while same < _QUIET_LOOKS:
        await asyncio.sleep(_QUIET_S)
        same = same + 1 if counter.total == total else 0
        total = counter.total


def counted(appends: int) -> tuple[LoneAppend, LoneAppend]:
    """Make so many lone appends in a cluster of this process; return the calls of one, and of one
    after which a LAC travels by itself."""
    service = replace(bookie._SERVICE, checkpoint_interval_s=_NEVER_S)  # noqa: SLF001
    counter, loop_passes = CallCounter(), PassCounter()
    counter.install()
    try:
        with (
            patch.object(bookie, "_SERVICE", service),
            dlog.testing.cluster(_BOOKIES) as cluster,
            asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(loop_passes)) as runner,
        ):
            return runner.run(_appended(cluster.uri, appends, counter, loop_passes))
    finally:
        counter.uninstall()


def grown(figures: Mapping[str, float], recorded: Mapping[str, float]) -> list[str]:
    """Return a sentence for each figure that is larger than the recorded one allows."""
    return [
        f"{name}: {figure:g}, and {recorded[name]:g} were recorded"
        for name, figure in figures.items()
        if figure > recorded[name] * (1 + GROWTH_MAX)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--appends", type=int, default=APPENDS)
    parser.add_argument("--files", action="store_true", help="print the calls of each file")
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.name}")
    options = parser.parse_args()
    lone, published = counted(options.appends)
    if options.files:
        for name, calls in (("client", lone.client), ("each bookie", lone.bookie)):
            for file, count in sorted(calls.items(), key=lambda pair: -pair[1]):
                if count >= _SOMETIMES:
                    print(f"{count:8.1f}  {name:12} {file}")
    figures = lone.figures()
    for name, own in ((LAC, "calls of the client"), (LAC_AT_BOOKIE, "calls of each bookie")):
        figures[name] = published.figures()[own]
    if options.record:
        # Which answers come in one turn is chance.
        kept = figures | {PASSES: math.ceil(figures[PASSES])}
        RECORDED.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    recorded: dict[str, float] = json.loads(RECORDED.read_text(encoding="utf-8"))
    for name, figure in figures.items():
        print(f"{figure:8g}  {name} (recorded: {recorded[name]:g})")
    wrong = grown(figures, recorded)
    for line in wrong:
        print(line, file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
