"""Keeps clients of a gateway to the quotas of the namespace, as Kafka's brokers do.

A request that came is served, and paid for afterwards. Its answer says for how long the client is
throttled (`throttle_time_ms`), and that long nothing more is read from its connection. So what is
too much waits in the client, and nobody is refused. What the connections of an identity draw, they
draw together; a new one of an identity in debt waits before its first request is served.

A client counts as its identity, and where nobody is known, as the name that it calls itself:
`client:NAME`. Each gateway enforces the whole rate alone, as each bookie does.
"""

import time
from collections.abc import Callable, Iterable
from typing import Final

from dlog.kafka.listener import ClientSession
from ledger.security.quotas import CLIENT_KIND, NS, Bucket, QuotaBuckets, Quotas, QuotaTable

MUTE_NS_MAX: Final = 30 * NS
"""So long a connection is not read from; debts that are longer stay, and count with the next
request. Less than clients wait for an answer, and than a member of a group may be silent."""
KNOWN_MAX: Final = 65_536
"""Clients and logs of which it is remembered which quotas are for them."""
_MS_NS: Final = 1_000_000


class ClientThrottle:
    """Amounts are of one partition. It does nothing but count."""

    def __init__(self, *, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.table = QuotaTable()
        self._clock_ns = clock_ns
        self._known: dict[tuple[str, str | None], tuple[QuotaBuckets, ...]] = {}

    def learn(self, quotas: Quotas) -> None:
        self.table.learn_quotas(quotas)
        self._known.clear()

    def owed_s(self, session: ClientSession) -> float:
        """Return how long a connection waits before it draws for the first time, for what others
        of its identity owe; 0 at any other time."""
        if session.draws or not self.table.is_on:
            return 0.0
        session.draws = True
        now_ns = self._clock_ns()
        owed_ns = (
            bucket.wait_ns(now_ns)
            for purse in self._purses(session, None)
            for bucket in purse.buckets
            if bucket is not None
        )
        return min(max(owed_ns, default=0), MUTE_NS_MAX) / NS

    def produced(self, session: ClientSession, log: str, size_bytes: int) -> int:
        """Draw a batch; return for how many milliseconds the client is throttled."""
        if not self.table.is_on:
            return 0
        return self._draw(
            (purse, bucket, amount)
            for purse in self._purses(session, log)
            for bucket, amount in ((purse.append_bytes, size_bytes), (purse.append_entries, 1))
        )

    def fetched(self, session: ClientSession, log: str, size_bytes: int) -> int:
        """Draw what was read; return for how many milliseconds the client is throttled."""
        if not self.table.is_on:
            return 0
        return self._draw(
            (purse, bucket, amount)
            for purse in self._purses(session, log)
            for bucket, amount in ((purse.read_bytes, size_bytes), (purse.read_requests, 1))
        )

    def _draw(self, drawings: Iterable[tuple[QuotaBuckets, Bucket | None, int]]) -> int:
        now_ns, wait_ns, by = self._clock_ns(), 0, None
        for purse, bucket, amount in drawings:
            if bucket is not None:
                bucket.draw(amount, now_ns)
                if (needed_ns := bucket.wait_ns(now_ns)) > wait_ns:
                    wait_ns, by = needed_ns, purse
        wait_ns = min(wait_ns, MUTE_NS_MAX)
        if by is not None:
            self.table.delayed_ns[str(by.quota)] += wait_ns
        return -(-wait_ns // _MS_NS)

    def _purses(self, session: ClientSession, log: str | None) -> tuple[QuotaBuckets, ...]:
        who = session.identity or f"{CLIENT_KIND}:{session.client_id}"
        purses = self._known.get((who, log))
        if purses is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            purses = self._known[who, log] = self.table.purses(who, log)
        return purses
