"""Asks a bookie as operators do, as it is registered."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ledger.registry import BookieRegistration
from ledger.security.certificates import Security

if TYPE_CHECKING:
    from ledger.transport.operator import BookieOperator


@asynccontextmanager
async def operator_of(
    found: BookieRegistration, *, timeout_s: float, security: Security | None
) -> "AsyncIterator[BookieOperator]":
    """Yield a connection to the operators' port of the bookie, which must have one; *security* is
    what this process has. Raises `TransportMismatch`."""
    # Only now: it brings gRPC along, which takes longer to import than 'dlog status' takes.
    from ledger.transport.operator import BookieOperator

    operator = BookieOperator(
        found.operator_address,
        bookie=found.bookie,
        timeout_s=timeout_s,
        security=security,
        takes=found.takes,
    )
    async with operator:
        yield operator
