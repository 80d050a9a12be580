"""Brings commands to whoever leads: `submit` with *forward*.

A command that is forwarded has a request, so it is sent again until its outcome is known, at the
same leader or at its successor, and has one effect.

Invariants:
    an error that says "not applied" is raised only if no attempt may have been applied
    a number of a request is given to one command
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from dlog import metrics
from dlog.aio.forward import (
    ForwardClient,
    ForwardDenied,
    ForwardEndpoint,
    ForwardFailed,
    ForwardListener,
    WriterRights,
)
from dlog.aio.port import Ledgers
from dlog.aio.store import ManifestNode
from dlog.errors import CommandOutcomeUnknown, ForwardRefused, InvalidResult, NotLeader
from dlog.protocol.command import LeaderMark, RequestId
from dlog.protocol.forward_message import TIMEOUT_MS_MAX, ForwardedCommand, RequestNumbers
from ledger.delays import Backoff
from ledger.errors import AccessDenied, LogError, TooManyPending
from ledger.log_events import get_logger
from ledger.security.certificates import own_name

BACKOFF_S: Final = 0.05
BACKOFF_S_MAX: Final = 0.5
PAUSE_S: Final = 0.002
"""Between two attempts at least, while much is applied."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalReplica:
    """What a router knows of its own replica."""

    name: str
    """Of the log, as it was opened."""
    candidate: str
    version: int
    """Of the application."""
    leads: Callable[[], bool]
    """Raises what stopped the replica."""
    leader_elsewhere: Callable[[], LeaderMark | None]
    """Who leads as far as is known here; None: not known."""
    submit: Callable[[bytes, RequestId, float, int], Awaitable[object]]
    """Submits here a command of a version, and waits so many seconds."""
    changed: Callable[[], asyncio.Event]
    """Set when something was applied, or the role changed."""


class CommandRouter:
    """`listen`, then `submit`; `close` in the end."""

    def __init__(
        self, replica: LocalReplica, ledgers: Ledgers, node: ManifestNode, prefix: str
    ) -> None:
        """*prefix*: of names of clients that nobody else uses."""
        assert node.followed is not None, "a replica is of one life of its log"
        self._replica, self._security = replica, ledgers.security
        self._incarnation = node.followed
        self._rights = WriterRights(ledgers.store, ledgers.security, lambda: node.log)
        self._client = ForwardClient(
            replica.name, self._incarnation, self._rights, ledgers.security
        )
        self._listener: ForwardListener | None = None
        self._numbers = RequestNumbers(prefix)
        self._loop = asyncio.get_running_loop()

    @property
    def endpoint(self) -> str:
        """Where commands of other replicas are taken; empty: nowhere."""
        return "" if self._listener is None else str(self._listener.endpoint)

    async def listen(self, host: str | None) -> None:
        """Take commands of other replicas on a free port of *host*; None: take none."""
        if host is None:
            return
        try:
            self._listener = await ForwardListener.open(
                host, self._incarnation, self._take, self._rights, self._security
            )
        except OSError as error:
            _log.warning("commands_not_taken", log=self._replica.name, error=str(error))

    def leader_changed(self) -> None:
        """Send what has no reply yet to the leader that is known now."""
        self._client.drop()

    async def close(self) -> None:
        """Take and send nothing more. Idempotent."""
        self._client.close()
        if self._listener is not None:
            await self._listener.close()

    async def submit(self, payload: bytes, request: RequestId | None, wait_s: float) -> object:
        """Return the result of the command. See `dlog.aio.Replica.submit`."""
        if request is not None:
            return await self._submit(payload, request, wait_s)
        request = self._numbers.take()
        try:
            return await self._submit(payload, request, wait_s)
        finally:
            self._numbers.release(request)

    async def _submit(self, payload: bytes, request: RequestId, wait_s: float) -> object:
        replica, ends_at = self._replica, self._loop.time() + wait_s
        backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
        may_be_applied = False
        failure: Exception | None = None
        while (left_s := ends_at - self._loop.time()) > 0:
            changed = replica.changed()
            try:
                leads = replica.leads()
            except LogError as error:  # it was closed, or stopped
                if may_be_applied:
                    raise CommandOutcomeUnknown(replica.name, str(error)) from error
                raise
            try:
                if leads:
                    return await replica.submit(payload, request, left_s, replica.version)
                leader = replica.leader_elsewhere()
                if leader is not None:
                    return await self._forward(leader, payload, request, left_s)
            except NotLeader as error:
                failure = error
            except CommandOutcomeUnknown as error:
                may_be_applied, failure = True, error
            except ForwardFailed as error:
                may_be_applied |= error.was_sent
                failure = error
                _log.info("forward_failed", log=replica.name, reason=error.reason)
            except LogError as error:
                self._check_final(error, may_be_applied=may_be_applied)
                failure = error
            within_s = min(backoff.next(), max(ends_at - self._loop.time(), 0))
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await changed.wait()
                    await asyncio.sleep(PAUSE_S)
        if may_be_applied:
            reason = f"it was forwarded, and its outcome was not known after {wait_s:g} s"
            raise CommandOutcomeUnknown(replica.name, reason) from failure
        if isinstance(failure, NotLeader):
            raise failure
        known = replica.leader_elsewhere() or LeaderMark(0, "", "")
        reason = ""
        if isinstance(failure, ForwardFailed) and known.endpoint:
            reason = (
                f"it could not be reached at {known.endpoint} ({failure.reason}): each replica "
                "needs a lifeline_host that the other machines reach"
            )
        raise NotLeader(replica.name, known.name, known.address, known.epoch, reason) from failure

    def _check_final(self, error: LogError, *, may_be_applied: bool) -> None:
        """Raise what the command ends with, unless another attempt may still tell its outcome."""
        if not may_be_applied or error.outcome_unknown or isinstance(error, InvalidResult):
            raise error
        if not isinstance(error, TooManyPending | ForwardRefused):
            raise CommandOutcomeUnknown(self._replica.name, str(error)) from error

    async def _forward(
        self, leader: LeaderMark, payload: bytes, request: RequestId, left_s: float
    ) -> object:
        replica = self._replica
        endpoint = ForwardEndpoint.parse(leader.endpoint)
        if endpoint is None:
            reason = "it takes none; open it with a lifeline_host that the others reach"
            raise ForwardRefused(replica.name, leader.name, reason)
        timeout_ms = min(int(left_s * 1000) + 1, TIMEOUT_MS_MAX)
        command = ForwardedCommand(request, payload, replica.version, timeout_ms)
        try:
            reply = await self._client.send(endpoint, command)
        except ForwardFailed:
            metrics.REPLICA_FORWARDS.add("lost")
            raise
        except ForwardDenied:
            metrics.REPLICA_FORWARDS.add("refused")
            identity = own_name(self._security)
            what = f"submit to the leader of log {replica.name!r}, or it may not lead"
            raise AccessDenied(identity, "writer", what, logs=replica.name) from None
        is_refused = isinstance(reply, NotLeader | ForwardRefused | TooManyPending)
        metrics.REPLICA_FORWARDS.add("refused" if is_refused else "answered")
        if isinstance(reply, LogError):
            raise reply
        return reply

    async def _take(self, command: ForwardedCommand) -> object:
        """Submit here what another replica forwarded."""
        replica = self._replica
        if replica.leads() and command.version > replica.version:
            reason = (
                f"it is of version {command.version} of the application, and the leader's is "
                f"{replica.version}: give each replica the new program before version is raised"
            )
            raise ForwardRefused(replica.name, replica.candidate, reason)
        wait_s = max(command.timeout_ms / 1000, 0.001)
        return await replica.submit(command.payload, command.request, wait_s, command.version)
