"""A writer takes its own log over, because its ledger met trouble that may pass.

The same takeover as any other, on one condition: the log's epoch is still the writer's. It is
looked at before anything is fenced, and the swap proves that it held. So a writer that heals
never disturbs a successor, and what its old ledger holds is settled for ever when this returns.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from dlog.aio.port import Leadership, Ledgers
from dlog.aio.store.manifests import ManifestNode
from dlog.aio.write.opening import OpenedLog, TakeoverDriver
from ledger.errors import LogError
from ledger.log_events import get_logger

HEAL_S: Final = 30.0
"""How long a writer tries to heal unless told otherwise."""
BACKOFF_S: Final = 0.1
BACKOFF_S_MAX: Final = 2.0

_log = get_logger(__name__)


async def heal(
    ledgers: Ledgers,
    node: ManifestNode,
    trouble: LogError,
    *,
    epoch: int,
    incarnation: str,
    term: Leadership | None,
    now_ms: Callable[[], int],
    patience_s: float,
) -> OpenedLog:
    """Open the log again for the writer of *epoch*; try for *patience_s*.

    Raises `EpochChanged`, `LostOwnership`, `NoSuchLog` or `LogSealed` if it is not its to write
    any more, and the last trouble if that did not pass."""
    backoff_s = BACKOFF_S
    try:
        async with asyncio.timeout(patience_s):
            while True:
                driver = TakeoverDriver(
                    ledgers,
                    node,
                    term=term,
                    now_ms=now_ms,
                    expected_epoch=epoch,
                    heals=incarnation,
                )
                try:
                    return await driver.run()
                except LogError as error:
                    if not error.retryable:
                        raise
                    trouble = error
                _log.warning("healing_postponed", log=node.log, error=str(trouble))
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
    except TimeoutError:
        raise trouble from None
