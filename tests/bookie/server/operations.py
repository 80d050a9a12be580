"""What clients ask of a bookie over the wire, and for whom each is: the matrix of SECURITY.md."""

import uuid
from typing import Final

from ledger.entry import LAC_ENTRY, encode_lac
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.ledger_owner import STAMP_INCARNATION, STAMP_LOG
from ledger.manager import LedgerStore
from ledger.metadata import Fragment, LedgerMetadata
from ledger.metastore.port import put_node
from ledger.quorum import Quorum
from ledger.repair_marks import RepairLock, path_of_lock
from ledger.requests import AddRun, HeldQuery, LacQuery, ReadQuery, Status
from ledger.transport.sockets import SocketTransport
from tests.bookie.runs import KEY, run_of
from tests.ledger.serving import add

READS: Final = frozenset({"read", "long poll", "lac"})
RECOVERS: Final = frozenset({"fence", "fencing read"})
COPIES: Final = "copy"
"""A recovery add to a ledger that is CLOSED and under repair by the client."""
ADDS: Final = frozenset({"add", "recovery add", "explicit lac", "explicit lac of a recovery"})
OPERATIONS: Final = [*sorted(READS), *sorted(RECOVERS), *sorted(ADDS), COPIES, "held"]
WRITES: Final = READS | RECOVERS | ADDS | {COPIES}
REPAIRS: Final = READS | RECOVERS | {COPIES, "held"}


async def do(
    operation: str, transport: SocketTransport, bookie: BookieId, ledger_id: LedgerId
) -> Status:
    match operation:
        case "add" | "recovery add" | "copy":
            run = entry(ledger_id, 1, recovery=operation != "add")
            return await add(transport, run, bookie=bookie)
        case "explicit lac" | "explicit lac of a recovery":
            lac = explicit_lac(ledger_id, recovery=operation != "explicit lac")
            return await add(transport, lac, bookie=bookie)
        case "read" | "fencing read" | "long poll":
            query = ReadQuery(
                ledger_id,
                KEY,
                0,
                0,
                fence=operation == "fencing read",
                wait_ms=1 if operation == "long poll" else 0,
            )
            return (await transport.read(bookie, query)).status
        case "lac" | "fence":
            lac_query = LacQuery(ledger_id, KEY, fence=operation == "fence")
            return (await transport.read_lac(bookie, lac_query)).status
        case _:
            held = await transport.read_held(bookie, HeldQuery(ledger_id, KEY, 0, 0))
            return held.status


async def made(ledgers: LedgerStore, bookie: BookieId, log: str | None) -> LedgerId:
    """Return a new ledger of *log*, None: of none, that is on *bookie* alone."""
    return await ledgers.create(
        LedgerMetadata(
            quorum=Quorum(1, 1, 1),
            fragments=(Fragment(EntryId(0), (bookie,)),),
            access_key=KEY,
            creation_token=uuid.uuid4().bytes,
            custom={} if log is None else stamp(log),
        )
    )


async def closed(ledgers: LedgerStore, ledger_id: LedgerId, last_entry: int) -> None:
    """Let the ledger be CLOSED with *last_entry*."""
    metadata, version = await ledgers.read(ledger_id, fresh=True)
    await ledgers.write(ledger_id, metadata.closed(EntryId(last_entry), length=1), version)


async def locked(
    ledgers: LedgerStore, ledger_id: LedgerId, *identities: str, targets: tuple[str, ...]
) -> None:
    """Let the ledger's lock say that one of *identities* copies to *targets*."""
    lock = RepairLock("host:1", "token", identities, targets)
    await put_node(ledgers.store, path_of_lock(ledger_id), lock.encode())


def stamp(log: str, incarnation: str = "i1") -> dict[str, bytes]:
    return {STAMP_LOG: log.encode(), STAMP_INCARNATION: incarnation.encode()}


def explicit_lac(ledger_id: int, lac: int = 0, *, recovery: bool = False) -> AddRun:
    frame = encode_lac(ledger_id=ledger_id, last_add_confirmed=lac, length=7)
    return AddRun(
        ledger_id,
        KEY,
        [LAC_ENTRY],
        [len(frame)],
        frame,
        recovery=recovery,
        explicit_lac=True,
    )


def entry(ledger_id: int, entry_id: int = 0, *, recovery: bool = False) -> AddRun:
    return run_of(entry_id, ledger_id=ledger_id, lac=entry_id - 1, recovery=recovery)
