"""A small world in the hand of a test: production machines, bookies and metadata, no chance.

Everything that a test starts happens at once and completely, in the order in which messages
were sent, until only what the test holds is left. Time passes only in `pass_time`. After each
message the invariants of `tests.simulation.invariants` are checked.

    world = World(bookies=4)                    b1, b2, b3 are the first ensemble, b4 is spare
    writer = world.writer()
    adds = world.hold(ADD, at="b3")             questions on their way to b3
    answers = world.hold_answers(ADD, of="b1")  answers on their way back from b1
    writer.append("a")
    adds.release()                              now they arrive
    adds.time_out()                             the asker gives up; they may arrive later
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from bookie.storage.config import StorageConfig
from ledger.entry import access_key
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.metadata import Fragment, LedgerMetadata
from ledger.metastore.tree import Tree
from ledger.quorum import Quorum
from ledger.requests import AddRun, Status
from tests.simulation.invariants import INVARIANTS
from tests.simulation.oracle import Oracle
from tests.simulation.scenarios.bookie import SMALL, HandBookie
from tests.simulation.scenarios.post import Hold, Kind, Message, Post
from tests.simulation.scenarios.reader import Reader
from tests.simulation.scenarios.recoverer import Recoverer
from tests.simulation.scenarios.writer import Writer

Result = TypeVar("Result")
Client = TypeVar("Client", Writer, Recoverer, Reader)

METADATA = "metadata"
MOVED = ("fragments_strictly_ordered", "no_divergence_between_client_and_metadata")
"""Invariants that do not know of re-replication yet: forgiven where `World.move` is used."""
DEADLINES_MAX = 10_000
"""More of them in one `pass_time` are a machine that turns on the spot."""


class World:
    def __init__(
        self,
        *,
        bookies: int = 4,
        quorum: Quorum | None = None,
        storage: StorageConfig = SMALL,
        forgive: tuple[str, ...] = (),
    ) -> None:
        """*forgive*: invariants that the story breaks outside of what the protocol promises."""
        self.now = 0.0
        self.quorum = quorum or Quorum(3, 3, 2)
        self.tree = Tree()
        self.oracle = Oracle()
        self.story: list[str] = []
        """What happened, a line each: the text of a transcript."""
        self.post = Post(self.is_up, self._check)
        self.ledger_id = LedgerId(1)
        self._forgive = forgive
        self._clients: list[Writer | Recoverer | Reader] = []
        names = [BookieId(f"b{number}") for number in range(1, bookies + 1)]
        self.bookies = {name: HandBookie(self, name, storage) for name in names}

    # Who is there.

    def writer(self, *, password: bytes = b"") -> Writer:
        """Create the ledger, on the first bookies, and return its writer."""
        ensemble = tuple(self.bookies)[: self.quorum.ensemble]
        metadata = LedgerMetadata(
            quorum=self.quorum,
            fragments=(Fragment(EntryId(0), ensemble),),
            access_key=access_key(password),
        )
        self.create_ledger(metadata)
        return self._join(Writer(self, "writer", self.ledger_id, metadata, password))

    def recoverer(self, name: str = "recoverer", *, password: bytes = b"") -> Recoverer:
        return self._join(Recoverer(self, name, self.ledger_id, password))

    def reader(self, name: str = "reader", *, password: bytes = b"") -> Reader:
        """Open the ledger without recovery."""
        return self._join(Reader(self, name, self.ledger_id, self.metadata, password))

    def _join(self, client: Client) -> Client:
        self._clients.append(client)
        return client

    def bookie(self, name: str) -> HandBookie:
        return self.bookies[BookieId(name)]

    # What the test does.

    def hold(self, kind: Kind, *, at: str = "", by: str = "") -> Hold:
        """Hold the questions of *kind* on their way to bookie *at*, asked by client *by*."""
        return self.post.hold(_fits(kind, at, by, is_answer=False))

    def hold_answers(self, kind: Kind, *, of: str = "", to: str = "") -> Hold:
        """Hold the answers to questions of *kind* of bookie *of*, on their way to client *to*."""
        return self.post.hold(_fits(kind, of, to, is_answer=True))

    def crash(self, *names: str) -> None:
        """Let bookies lose power. Whoever waits for an answer of theirs hears that none comes."""
        for name in names:
            self.tell(f"{name} crashes")
            self.bookie(name).crash()
            self.post.break_off(name)

    def restart(self, name: str) -> None:
        self.tell(f"{name} starts again")
        self.bookie(name).restart()
        self.post.run()

    def retire(self, *names: str) -> None:
        """Let nobody pick these bookies for an ensemble any more."""
        for name in names:
            self.bookie(name).registered = False

    def pass_time(self, seconds: float) -> None:
        """Let each machine and long poll know when its time has come."""
        until = self.now + seconds
        for _ in range(DEADLINES_MAX):
            parties = [*self._clients, *self.bookies.values()]
            due = [(at, party) for party in parties if (at := party.deadline()) is not None]
            first = min((at for at, _ in due), default=until)
            if not due or first > until:
                self.now = until
                return
            self.now = max(self.now, first)
            for at, party in due:
                if at <= self.now:
                    self.post.do(party.time_passed)
        raise AssertionError(f"something is always due at {self.now}")

    def move(self, entries: range, *, out: str, into: str) -> None:
        """Re-replicate: copy *entries* from *out*'s peers to *into*, then record it by CAS."""
        frames = [
            next(
                frame
                for name, bookie in self.bookies.items()
                if name != out and bookie.up and (frame := bookie.frame(self.ledger_id, entry))
            )
            for entry in entries
        ]
        run = AddRun(
            self.ledger_id,
            self.metadata.access_key,
            entries,
            [len(frame) for frame in frames],
            b"".join(frames),
            recovery=True,
        )
        answers: list[Status] = []
        self.post.do(lambda: self.bookie(into).add(run, answers.append))
        assert answers == [Status.OK]
        before = self.metadata
        fragments = tuple(
            Fragment(
                fragment.first_entry,
                tuple(BookieId(into) if name == out else name for name in fragment.bookies),
            )
            if fragment is before.fragment_of(entries[0])
            else fragment
            for fragment in before.fragments
        )
        self.record(replace(before, fragments=fragments))

    # Metadata.

    @property
    def metadata(self) -> LedgerMetadata:
        """What is stored about the ledger now."""
        path = self.path(self.ledger_id)
        return LedgerMetadata.decode(self.tree.get(path).value, path=path)

    @property
    def fragments(self) -> dict[int, str]:
        """Return the recorded fragments: first entry -> bookies, as in `b1 b2 b3`."""
        return {f.first_entry: " ".join(f.bookies) for f in self.metadata.fragments}

    def path(self, ledger_id: LedgerId) -> str:
        return f"/ledgers/{ledger_id}"

    def create_ledger(self, metadata: LedgerMetadata) -> None:
        self.tree.create(self.path(self.ledger_id), metadata.encode())
        self.oracle.recorded(self.ledger_id, 0, metadata)

    def record(self, metadata: LedgerMetadata) -> None:
        """Let somebody who is not of this story change the ledger's metadata."""
        version = self.tree.set(self.path(self.ledger_id), metadata.encode())
        self.oracle.recorded(self.ledger_id, version, metadata)

    def delete_ledger(self) -> None:
        self.tree.delete(self.path(self.ledger_id))
        self.oracle.deleted(self.ledger_id)

    # What clients need.

    def ask_metadata(
        self,
        kind: Kind,
        client: str,
        operation: Callable[[Tree], Result],
        on_done: Callable[[Result | None], None],
    ) -> None:
        self.post.ask(kind, client, METADATA, lambda reply: reply(operation(self.tree)), on_done)

    def replacements(
        self, indexes: Sequence[int], exclude: Sequence[BookieId]
    ) -> tuple[tuple[int, BookieId], ...]:
        """Pick registered bookies in the order of their names, as many as there are."""
        free = [
            name
            for name, bookie in self.bookies.items()
            if bookie.up and bookie.registered and name not in exclude
        ]
        return tuple(zip(indexes, free, strict=False))

    def is_up(self, place: str) -> bool:
        return place == METADATA or self.bookie(place).up

    def tell(self, line: str) -> None:
        self.story.append(line)

    def _check(self) -> None:
        for ledger_id in self.oracle.changed:
            history = self.oracle.ledgers[ledger_id]
            for name, broken in INVARIANTS.items():
                if name not in self._forgive and history.metadata:
                    wrong = broken(history)
                    assert wrong is None, f"{name}: {wrong}"
        self.oracle.changed.clear()


def _fits(kind: Kind, place: str, client: str, *, is_answer: bool) -> Callable[[Message], bool]:
    def fits(message: Message) -> bool:
        return (
            message.kind is kind
            and message.is_answer == is_answer
            and place in {"", message.place}
            and client in {"", message.client}
        )

    return fits
