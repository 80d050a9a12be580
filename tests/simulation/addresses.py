"""Which bookie answers at an address: the one that is meant, or a foreign one of the same name.

Addresses are used again: while a bookie is down or stands still, or has come back at another
address, some other bookie of its name may listen where it was last. Whether a connection is made is
decided by the handshake of production, by both ends; nothing is believed of the network.
"""

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from bookie.storage.config import StorageConfig
from bookie.storage.engine import BookieStorage
from ledger.entry import encode_frame
from ledger.ids import NOBODY, BookieId, BookieIdentity
from ledger.requests import (
    AddRun,
    HeldAnswer,
    HeldQuery,
    LacAnswer,
    LacQuery,
    ReadAnswer,
    ReadQuery,
    Status,
)
from ledger.transport.handshake import (
    IDENTIFIED,
    Purpose,
    Refusal,
    answer_to,
    decode_answer,
    decode_hello,
    encode_answer,
    encode_hello,
    hello_to,
    why_not_meant,
)
from tests.simulation.disk import SimDisk
from tests.simulation.disks_elsewhere import known
from tests.simulation.kernel.host import Host
from tests.simulation.service import SimService

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.cluster import Cluster

FILLED: Final = 0.5
"""Of the foreign bookies: they have ledgers of their own, under the same ids and keys."""
ENTRIES_MAX: Final = 8
"""Of each."""


class Listener(Protocol):
    """A process at an address."""

    name: BookieId
    host: Host
    serves: bool

    @property
    def identity(self) -> BookieIdentity: ...

    def add(self, run: AddRun, connection: int, reply: "Callable[[Status], None]") -> None: ...

    def read(self, query: ReadQuery, reply: "Callable[[ReadAnswer], None]") -> None: ...

    def read_lac(self, query: LacQuery, reply: "Callable[[LacAnswer], None]") -> None: ...

    def read_held(self, query: HeldQuery, reply: "Callable[[HeldAnswer], None]") -> None: ...


def meant(cluster: "Cluster", bookie: BookieId) -> BookieIdentity:
    """Return which bookie of the name a client means: the one that the store knows now."""
    cookie = known(cluster, bookie)
    if cookie is None:
        return NOBODY
    return BookieIdentity(cookie.instance, cookie.cookie, cookie.life)


def connects(
    cluster: "Cluster", target: Listener, purpose: Purpose, bookie: BookieId, who: BookieIdentity
) -> bool:
    """Whether a client that means the *bookie* that is *who* has a connection to *target*."""
    said = hello_to(purpose, bookie, who)
    hello = decode_hello(encode_hello(said))
    assert hello is not None, "it is whole"
    welcome = answer_to(
        hello,
        bookie=target.name,
        incarnation=f"start {target.host.life}",
        identity=target.identity,
        lowest=IDENTIFIED,
    )
    answer = decode_answer(encode_answer(welcome))
    assert answer is not None, "it is whole"
    reason = answer.reason if isinstance(answer, Refusal) else why_not_meant(said, answer)
    if reason is not None:
        cluster.scheduler.note(target.host.name, f"is not connected: {reason}")
        is_foreign = isinstance(target, ForeignBookie)
        cluster.scheduler.mark("stranger_refused" if is_foreign else "own_bookie_refused")
    return reason is None


class ForeignBookie:
    """A bookie of the name of one of ours, on data of its own. What it promises is worth nothing
    here, so the oracle does not hear of it."""

    serves = True

    def __init__(
        self, cluster: "Cluster", name: BookieId, identity: BookieIdentity, config: StorageConfig
    ) -> None:
        random = cluster.scheduler.random
        self.name = name
        self.identity = identity
        self.host = Host(cluster.scheduler, f"foreign {name}")
        disk = SimDisk(random)
        storage = BookieStorage.open(disk, config, entropy=random.randbytes)
        service = SimService(cluster, self.host, storage)
        self.add, self.read = service.add, service.read
        self.read_lac, self.read_held = service.read_lac, service.read_held
        self._cluster = cluster
        self._reached: dict[str, bool] = {}
        if cluster.scheduler.chance(FILLED):
            for ledger_id, history in cluster.oracle.ledgers.items():
                if history.is_there:
                    self._fill(
                        ledger_id, history.recorded.access_key, random.randrange(ENTRIES_MAX)
                    )

    def is_reached(self, client: str) -> bool:
        """Whether *client* looks for the bookie here; once ours is up, elsewhere, some know."""
        if not self.host.up:
            return False
        ours = self._cluster.bookies[self.name].host
        if not ours.up:
            return True
        if client not in self._reached:
            self._reached[client] = self._cluster.scheduler.chance(0.5)
        return self._reached[client]

    def _fill(self, ledger_id: int, key: bytes, entries: int) -> None:
        for entry_id in range(entries):
            frame = encode_frame(
                ledger_id=ledger_id,
                entry_id=entry_id,
                last_add_confirmed=entry_id - 1,
                length=7 * (entry_id + 1),
                payload=b"foreign",
            )
            run = AddRun(ledger_id, key, [entry_id], [len(frame)], frame)
            self.host.after(0.0, partial(self.add, run, 0, _unheard))


def _unheard(_status: Status) -> None:
    """Its own clients are not simulated."""
