"""All checks there are, and how they are made: one more is one more line in `CHECKS`."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass
from typing import Final

from dlog.health.doctor_survey import gather_acls, gather_deletions, gather_servers
from dlog.health.signs import Checked, Facts, Report
from dlog.health.store import StoreFacts
from dlog.health.survey import Reach, gather_bookies, gather_logs, gather_openings, gather_repair
from ledger.cluster import open_namespace
from ledger.errors import LogError, NoNamespace
from ledger.manager import LedgerStore
from ledger.membership import attendance
from ledger.metastore.port import MetadataStore
from ledger.security.certificates import Security

CHECK_S_MAX: Final = 60.0
"""A check that takes longer is given up."""
ANSWER_S_MAX: Final = 5.0
"""A bookie that does not answer an operator by then is silent."""


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    """Of its facts in JSON."""
    gather: Callable[[Reach], Awaitable[Facts]]
    """May raise any `LogError`."""
    deep: bool = False
    """Only the doctor makes it: it asks much."""


CHECKS: Final = (
    Check("bookies", gather_bookies),
    Check("repair", gather_repair),
    Check("logs", gather_logs),
    Check("openings", gather_openings),
    Check("servers", gather_servers, deep=True),
    Check("deletions", gather_deletions, deep=True),
    Check("acls", gather_acls, deep=True),
)


async def examine(
    store: MetadataStore,
    *,
    deep: bool,
    only: Container[str] | None = None,
    timeout_s: float = ANSWER_S_MAX,
    security: Security | None = None,
) -> Report:
    """Make all checks at once, the *deep* ones too if asked; or those that *only* names, deep or
    not. Changes nothing; raises nothing that another program is to blame for: a check that cannot
    be made is a sign itself."""
    began = time.perf_counter()
    try:
        await store.sync()
        answered_s = time.perf_counter() - began
        namespace = await open_namespace(store)
        there = await attendance(store)
    except NoNamespace:
        return Report((Checked("store", StoreFacts(uri=store.uri)),))
    except LogError as error:
        return unreachable(store.uri, error)
    facts = StoreFacts(
        uri=store.uri,
        instance=namespace.instance,
        answered_s=answered_s,
        held=namespace.held,
    )
    ledgers = LedgerStore(store, namespace.layout)
    reach = Reach(
        store, ledgers, there, min(timeout_s, ANSWER_S_MAX), security, namespace.held.level
    )
    wanted = [
        check
        for check in CHECKS
        if (deep or not check.deep if only is None else check.name in only)
    ]
    made = await asyncio.gather(*(_made(check, reach) for check in wanted))
    return Report((Checked("store", facts), *made))


def unreachable(uri: str, error: LogError) -> Report:
    """Return what is to be said if the metadata store does not serve."""
    return Report((Checked("store", StoreFacts(uri=uri, trouble=str(error))),))


async def _made(check: Check, reach: Reach) -> Checked:
    try:
        async with asyncio.timeout(CHECK_S_MAX):
            return Checked(check.name, await check.gather(reach))
    except TimeoutError:
        return Checked(check.name, None, f"it took longer than {CHECK_S_MAX:g} s")
    except LogError as error:
        return Checked(check.name, None, str(error))
