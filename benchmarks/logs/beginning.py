"""What a process pays before it does anything: imports, and the start of a command."""

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks import ledger
from benchmarks.figures import percentile
from benchmarks.logs.bench import Bench

_AIM_S: Final = 0.25
_STARTS: Final = (
    ("import dlog", ("-c", "import dlog")),
    ("dlog --version", ("-m", "dlog.cli", "--version")),
)


async def imports(bench: Bench, _: ledger.Bench) -> None:
    """Processor time of starts, without that of an interpreter that does nothing."""
    bare_s = await _processor_s(("-c", ""), bench.sizes.samples)
    for name, arguments in _STARTS:
        taken_s = await _processor_s(arguments, bench.sizes.samples)
        bench.at_most(f"{name}: processor", max(0.0, taken_s - bare_s), "s", _AIM_S)


async def _processor_s(arguments: Sequence[str], samples: int) -> float:
    """Return the median of what starts of an interpreter cost that are not the first."""
    await _started(arguments)
    return percentile([await _started(arguments) for _ in range(samples)], 50)


async def _started(arguments: Sequence[str]) -> float:
    before = os.times()
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 0, arguments
    after = os.times()
    return (
        after.children_user - before.children_user + after.children_system - before.children_system
    )
