"""Asks a bookie as operators do, as it is registered."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ledger.errors import CallerError
from ledger.registry import BookieDirectory, BookieRegistration
from ledger.security.certificates import Security
from ledger.security.tls_negotiation import Takes
from ledger.transport.handshake import NEEDED
from ledger.transport.operator import BookieOperator


class NoOrders(CallerError):
    """The bookie cannot be given orders."""

    def __init__(self, bookie: str, reason: str) -> None:
        super().__init__(reason)
        self.bookie, self.reason = bookie, reason


def taking_orders(
    directory: BookieDirectory, bookie: str, *, security: Security | None
) -> BookieRegistration:
    """Return how *bookie* is given orders. One that is not registered is asked where its clients
    last found it, and will not answer. Raises `NoOrders`."""
    for found in directory.available():
        if found.bookie == bookie:
            if not found.operator_address:
                reason = f"bookie {bookie!r} takes no orders: start it with {NEEDED}"
                raise NoOrders(bookie, reason)
            return found
    address = directory.address(bookie)
    if not address:
        raise NoOrders(bookie, f"no bookie {bookie!r} is known; see 'dlog bookie list'")
    takes = Takes.PLAIN if security is None else security.takes
    meant = directory.identity(bookie)
    return BookieRegistration(
        bookie,
        address,
        "",
        operator_address=address,
        takes=takes,
        identity="" if meant is None else meant.identity,
        instance="" if meant is None else meant.instance,
    )


@asynccontextmanager
async def operator_of(
    found: BookieRegistration, *, timeout_s: float, security: Security | None
) -> AsyncIterator[BookieOperator]:
    """Yield a connection to the operators' port of the bookie, which must have one; *security* is
    what this process has. Raises `TransportMismatch`."""
    operator = BookieOperator(
        found.operator_address,
        bookie=found.bookie,
        meant=found.meant,
        timeout_s=timeout_s,
        security=security,
        takes=found.takes,
    )
    async with operator:
        yield operator
