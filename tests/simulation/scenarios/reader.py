"""A reader of the hand-held world: one `ledger.protocol.read` machine for each read."""

from typing import TYPE_CHECKING, assert_never

from ledger.entry import parse_header, payload_of
from ledger.ids import NO_ENTRY, LedgerId
from ledger.metadata import LedgerMetadata
from ledger.protocol import common
from ledger.protocol import read as protocol
from ledger.protocol.answers import verified
from ledger.requests import ReadAnswer, ReadQuery
from tests.simulation.scenarios.client import Client
from tests.simulation.scenarios.post import Kind

if TYPE_CHECKING:
    from tests.simulation.scenarios.world import World


class Reader(Client[protocol.ReadingEvent, protocol.ReadingEffect]):
    def __init__(
        self,
        world: "World",
        name: str,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        password: bytes,
    ) -> None:
        super().__init__(world, name, ledger_id, password)
        self.metadata = metadata
        self.last_add_confirmed: int = NO_ENTRY
        self.failure: protocol.ReadFailure | None = None
        self.payloads: list[str] | None = None
        """What the last read delivered; None while it is under way or if it failed."""
        self._reading: protocol.Reading | None = None
        self._frames: dict[int, bytes] = {}

    def read(self, first: int, last: int, *, wait_s: float = 0.0) -> None:
        """Begin to read, without recovery, what is there of *first*..*last*."""
        self.world.post.do(lambda: self._begin(first, last, wait_s))

    def _begin(self, first: int, last: int, wait_s: float) -> None:
        self.failure, self.payloads = None, None
        self._frames.clear()
        self._reading = protocol.Reading(
            self.metadata,
            first=first,
            last=last,
            last_add_confirmed=self.last_add_confirmed,
            give_up_at=self.world.now + wait_s,
        )
        self.use(self._reading, common.TimePassed())
        self.feed(protocol.ReadStarted())

    def execute(self, effect: protocol.ReadingEffect) -> None:
        reading = self._reading
        match effect:
            case protocol.SendRead():
                query = ReadQuery(
                    self.ledger_id, self.key, effect.first, effect.last, wait_ms=effect.wait_ms
                )
                self._ask(effect, query, reading)
            case common.ReadMetadata():
                self.read_metadata(
                    read=lambda metadata, version: self._tell(
                        reading, common.MetadataRead(metadata, version)
                    ),
                    failed=lambda: self._tell(reading, common.MetadataFailed()),
                )
            case protocol.Deliver():
                self._deliver(effect.first, effect.last)
            case protocol.FailRead():
                self.failure = effect.failure
            case _:
                assert_never(effect)

    def _ask(
        self, asked: protocol.SendRead, query: ReadQuery, reading: protocol.Reading | None
    ) -> None:
        def answered(answer: ReadAnswer) -> None:
            found = verified(answer, self.ledger_id, None)
            for entry, frame in found.frames.items():
                self._frames[entry] = bytes(frame)
            self.world.oracle.saw_lac(self.ledger_id, found.last_add_confirmed, who=self.name)
            self._tell(
                reading,
                protocol.EntriesRead(
                    asked.index,
                    asked.attempt,
                    found.status,
                    tuple(found.frames),
                    found.last_add_confirmed,
                    found.fenced,
                ),
            )

        self.ask_read(Kind.READ, asked.bookie, query, answered)

    def _tell(self, reading: protocol.Reading | None, event: protocol.ReadingEvent) -> None:
        """Feed *event* unless it answers a read that is over."""
        if reading is self._reading:
            self.feed(event)

    def _deliver(self, first: int, last: int) -> None:
        assert self._reading is not None
        self.metadata = self._reading.metadata
        self.last_add_confirmed = self._reading.last_add_confirmed
        self.payloads = []
        for entry in range(first, last + 1):
            frame = self._frames[entry]
            self.world.oracle.read(self.ledger_id, entry, frame, who=f"{self.name} from {first}")
            self.payloads.append(bytes(payload_of(frame, parse_header(frame))).decode())
