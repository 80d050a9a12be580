"""Takes a candidate's nodes away, for certain, whatever the metadata store does meanwhile.

A node left behind by a living session would lead, or hold the next one back, for as long as
that session lives. So a withdrawal that cannot be done at once goes on in the background
until it is done or the session, and with it every node it made, has ended.
"""

import asyncio
from collections.abc import Coroutine
from typing import Final

from leader.election import candidacies, leaders_path, node_prefix
from ledger.delays import Backoff
from ledger.errors import HandleClosed, LogError, MetadataUnavailable, NoSuchNode
from ledger.log_events import get_logger
from ledger.metastore.port import MetadataStore, Session

PAUSE_MIN_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0
WITHDRAW_S: Final = 1.0
"""How long a caller waits for a withdrawal before it goes on without."""
_unfinished: set[asyncio.Task[None]] = set()  # asyncio itself keeps only weak references
_log = get_logger(__name__)


async def first_of(*waits: Coroutine[object, object, object], timeout_s: float) -> None:
    """Return when one of *waits* has ended, or after *timeout_s*. Raises what it raised.

    The others are cancelled, and have ended when this returns."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(
            tasks, timeout=max(timeout_s, 0.0), return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if task in done and not task.cancelled():
            task.result()


async def delete_nodes(store: MetadataStore, log: str, token: str) -> None:
    """Delete every node of the candidate with *token*.

    A create that was cancelled, or got no answer, may still be on its way. A store does the
    writes of a session in order, so once it has done one more of ours, that create is done
    too, or never will be; only then the children are all there are."""
    path = leaders_path(log)
    await delete_node(store, f"{path}/{node_prefix(token)}barrier")  # there is none
    try:
        children = await store.children(path)
    except NoSuchNode:
        return
    for candidacy in candidacies(children):
        if candidacy.token == token:
            await delete_node(store, f"{path}/{candidacy.name}")


async def delete_node(store: MetadataStore, path: str) -> None:
    """Delete the node at *path*, if it is still there."""
    try:
        await store.delete(path)
    except NoSuchNode:
        return


async def withdraw(store: MetadataStore, log: str, token: str) -> None:
    """Delete the candidate's nodes; return when done, or after `WITHDRAW_S` at the latest.

    Requires that nothing more is created with *token*. Its nodes are in the session that the
    store has now, or in one before, which took them along: the one in which a candidacy began
    says nothing, as the store may have replaced it before the node was made."""
    task = asyncio.create_task(_withdraw(store, store.session, log, token))
    _unfinished.add(task)
    task.add_done_callback(_unfinished.discard)
    await asyncio.wait({task}, timeout=WITHDRAW_S)


async def _withdraw(store: MetadataStore, session: Session, log: str, token: str) -> None:
    backoff = Backoff(PAUSE_MIN_S, PAUSE_MAX_S)
    while True:
        try:
            await delete_nodes(store, log, token)
        except MetadataUnavailable:
            if session.lost.is_set():
                return
            await asyncio.sleep(backoff.next())
        except HandleClosed:
            return  # the session ended with the store, and took the nodes along
        except LogError as error:
            _log.warning("withdrawal_failed", log=log, token=token, error=str(error))
            return
        else:
            return
