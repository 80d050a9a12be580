"""Stands for election until elected: the driver of `leader.election` over a metadata store.

A candidacy is one token in one session of the store. It ends when the session does, or when
its node has vanished; then another begins, with a new token. Asking again after an error is
bounded by `PAUSE_MIN_S` and `PAUSE_MAX_S`. However a campaign ends other than by winning, its nodes
are taken away (`leader.withdrawal`).
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final, assert_never

from leader import metrics
from leader.election import (
    Absent,
    Candidacy,
    Elected,
    Following,
    Standing,
    leaders_path,
    node_prefix,
    standing,
)
from leader.errors import InvalidCampaign, NotElected
from leader.lifeline import Lifeline, has_died
from leader.record import Candidate, CandidateRecord
from leader.term import LEASE_S, Term
from leader.withdrawal import PAUSE_MAX_S, PAUSE_MIN_S, delete_node, first_of, withdraw
from ledger.delays import Backoff
from ledger.errors import DamagedMetadata, MetadataUnavailable, NoSuchNode
from ledger.log_events import get_logger, now_ms
from ledger.metastore.port import MetadataStore, Session
from ledger.security.certificates import Security
from ledger.values import Duration, duration_or_none, duration_s

RECHECK_S: Final = 10.0
"""A follower looks at its predecessor this often even if its watch says nothing."""

_log = get_logger(__name__)


async def campaign(
    store: MetadataStore,
    log: str,
    *,
    candidate: Candidate | str = "",
    timeout_s: Duration | None = None,
    lease_s: Duration = LEASE_S,
    lifeline_host: str | None = "127.0.0.1",
    security: Security | None = None,
) -> Term:
    """Stand for election as leader of *log* and return the term once elected.

    Outlives loss of the store's session and of single replies. Several campaigns of one
    process for one log are candidates like any others.

    *candidate* says who stands, for people who look (text is its name, ``host:pid`` unless given),
    and where clients reach it. *timeout_s*
    ends the campaign; None waits for ever. For *lease_s* see `leader.term`: at most two
    thirds of the store's session timeout. *lifeline_host* is an address of this machine that
    the other candidates reach: there they learn of the death of this process at once, not
    only when its session ends (`leader.lifeline`). The default serves candidates of one
    machine; None listens nowhere. *security* is what its connections are secured with.

    Raises `NotElected` when the time is over, and `InvalidValue`."""
    if not log:
        raise InvalidCampaign("the name of the log is empty")
    leased_s = duration_s(lease_s, "lease_s", least=0.001)
    wait_s = duration_or_none(timeout_s, "timeout_s")
    running = _Campaign(
        store,
        log,
        candidate=Candidate.of(candidate),
        lease_s=leased_s,
        lifeline=_lifeline(lifeline_host, security),
        security=security,
    )
    metrics.CAMPAIGNS.add()
    began = time.monotonic()
    try:
        async with asyncio.timeout(wait_s):
            term = await running.run()
            metrics.TERMS.add()
            metrics.ELECTION_S.observe(time.monotonic() - began)
            return term
    except TimeoutError:
        assert wait_s is not None
        raise NotElected(log, wait_s, running.trouble) from None
    finally:
        running.close_unless_elected()


def _lifeline(host: str | None, security: Security | None) -> Lifeline | None:
    if host is None:
        return None
    try:
        return Lifeline.open(host, security)
    except OSError as error:
        _log.warning("no_lifeline", host=host, reason=str(error))
        return None  # then followers wait for the session to end


class _Campaign:
    """See `campaign`."""

    def __init__(
        self,
        store: MetadataStore,
        log: str,
        *,
        candidate: Candidate,
        lease_s: float,
        lifeline: Lifeline | None,
        security: Security | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._log, self._candidate = store, log, candidate
        self._lease_s, self._clock = lease_s, clock
        self._security = security
        self._lifeline: Lifeline | None = lifeline
        """Handed over to the term."""
        self._path = leaders_path(log)
        self.trouble = ""
        """What the metadata store said last, if it was no answer."""

    def close_unless_elected(self) -> None:
        if self._lifeline is not None:
            self._lifeline.close()

    async def run(self) -> Term:
        backoff = Backoff(PAUSE_MIN_S, PAUSE_MAX_S)
        while True:
            session = self._store.session
            if session.lost.is_set():
                await self._knock()
            else:
                term = await self._candidacy(session, secrets.token_hex(8))
                if term is not None:
                    return term
            await asyncio.sleep(backoff.next())

    async def _knock(self) -> None:
        """Find out whether the store will have a new session; raises if it was closed."""
        try:
            await self._store.exists(self._path)
        except MetadataUnavailable as error:
            self.trouble = str(error)

    async def _candidacy(self, session: Session, token: str) -> Term | None:
        """Stand once. Return the term, or None if the candidacy ended without one."""
        elected: tuple[Candidacy, float] | None = None
        try:
            elected = await self._stand(session, token)
        finally:
            if elected is None:
                await withdraw(self._store, self._log, token)
        if elected is None:
            return None
        own, proven_at = elected
        _log.info(
            "leader_elected", log=self._log, candidate=self._candidate.name, epoch=own.sequence
        )
        lifeline, self._lifeline = self._lifeline, None
        return Term(
            self._store,
            session,
            log=self._log,
            candidate=self._candidate.name,
            candidacy=own,
            proven_at=proven_at,
            lease_s=self._lease_s,
            lifeline=lifeline,
            clock=self._clock,
        )

    async def _stand(self, session: Session, token: str) -> tuple[Candidacy, float] | None:
        """Return our node and when it was asked for, once it leads; None if it vanished."""
        backoff = Backoff(PAUSE_MIN_S, PAUSE_MAX_S)
        created = False
        while not session.lost.is_set():
            asked_at = self._clock()
            try:
                found = await self._look(token)
                match found:
                    case Absent():
                        if created or session.lost.is_set():
                            return None
                        await self._create(token)
                        created = True
                    case Elected(own, _):
                        return None if session.lost.is_set() else (own, asked_at)
                    case Following(_, predecessor, _):
                        created = True
                        await self._until_gone(session, predecessor)
                    case _:
                        assert_never(found)
            except MetadataUnavailable as error:
                # The create may have been done all the same: the next look finds it.
                _log.warning("campaign_interrupted", log=self._log, error=str(error))
                self.trouble = str(error)
                await asyncio.sleep(backoff.next())
            else:
                self.trouble = ""
                backoff.reset()
        return None

    async def _look(self, token: str) -> Standing:
        """Return how we stand, and give up all of our nodes but the lowest."""
        await self._store.sync(self._path)
        try:
            found = standing(await self._store.children(self._path), token)
        except NoSuchNode:
            return Absent()
        if not isinstance(found, Absent):
            for surplus in found.surplus:
                await delete_node(self._store, f"{self._path}/{surplus.name}")
        return found

    async def _create(self, token: str) -> None:
        address = None if self._lifeline is None else self._lifeline.address
        record = CandidateRecord(self._candidate.name, now_ms(), address, self._candidate.address)
        prefix = f"{self._path}/{node_prefix(token)}"
        await self._store.create(prefix, record.encode(), ephemeral=True, sequential=True)

    async def _until_gone(self, session: Session, predecessor: Candidacy) -> None:
        path = f"{self._path}/{predecessor.name}"
        dead = asyncio.ensure_future(self._until_dead(path))
        try:
            with closing(self._store.watch(path)) as watch:
                while not session.lost.is_set() and await self._store.exists(path) is not None:
                    await first_of(
                        watch.changed(),
                        session.lost.wait(),
                        asyncio.wait({dead}),
                        timeout_s=RECHECK_S,
                    )
                    if dead.done():
                        dead.result()
        finally:
            dead.cancel()
            await asyncio.gather(dead, return_exceptions=True)

    async def _until_dead(self, path: str) -> None:
        """Clear the node at *path* away once its process has died for certain."""
        while True:
            try:
                record = CandidateRecord.decode((await self._store.get(path)).value, path=path)
            except NoSuchNode:
                return
            except DamagedMetadata:
                record = CandidateRecord("", 0)  # of another version: its session decides
            if record.lifeline is not None and await has_died(
                record.lifeline, security=self._security
            ):
                metrics.DIED.add()
                _log.info("predecessor_died", log=self._log, candidate=record.candidate)
                await delete_node(self._store, path)
                return
            await asyncio.sleep(RECHECK_S)
