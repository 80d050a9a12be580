"""What is said of one record: who wrote it, what is wrong with each copy."""

from dataclasses import replace

import pytest

from dlog.manifest import Manifest
from dlog.protocol.record_trace import WrittenBy, holders_of, judged, written_by
from ledger.entry import Header, ReplicaFault, encode_frame, parse_header
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.metadata import Fragment, LedgerMetadata
from ledger.protocol.answers import Found
from ledger.quorum import Quorum
from ledger.requests import Status

BOOKIES = tuple(BookieId(f"b{at}") for at in range(4))


def header(length: int = 5) -> Header:
    frame = encode_frame(
        ledger_id=7, entry_id=3, last_add_confirmed=2, length=length, payload=b"x" * 5
    )
    return parse_header(frame)


WHOLE = Found(Status.OK, {3: header()}, considered=3)


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (WHOLE, None),
        (Found(Status.OK, considered=3), ReplicaFault.MISSING),
        (Found(Status.NO_SUCH_LEDGER), ReplicaFault.MISSING),
        (Found(Status.OK, considered=2, damaged=3), ReplicaFault.DAMAGED),
        (Found(Status.IO_ERROR), ReplicaFault.UNREADABLE),
        (Found(Status.OK, considered=2), ReplicaFault.UNREADABLE),
        (Found(Status.UNREACHABLE), ReplicaFault.UNREACHABLE),
        (Found(Status.TOO_MANY_REQUESTS), ReplicaFault.UNREACHABLE),
        (Found(Status.UNKNOWN), ReplicaFault.REFUSED),
        (Found(Status.WRONG_KEY), ReplicaFault.REFUSED),
    ],
)
def test_what_an_answer_says_of_a_copy(found: Found, fault: ReplicaFault | None) -> None:
    assert judged(3, BOOKIES[:2], {BOOKIES[0]: WHOLE, BOOKIES[1]: found}) == {
        BOOKIES[0]: None,
        BOOKIES[1]: fault,
    }


def test_a_copy_that_is_whole_and_not_what_most_are_is_different() -> None:
    other = Found(Status.OK, {3: header(length=99)}, considered=3)
    found = {BOOKIES[0]: other, BOOKIES[1]: WHOLE, BOOKIES[2]: WHOLE}
    assert judged(3, BOOKIES[:3], found)[BOOKIES[0]] is ReplicaFault.DIFFERENT


def test_holders_are_those_of_the_write_set_in_its_order() -> None:
    metadata = LedgerMetadata(
        quorum=Quorum(4, 2, 2),
        fragments=(
            Fragment(EntryId(0), BOOKIES),
            Fragment(EntryId(5), tuple(reversed(BOOKIES))),
        ),
    )
    assert holders_of(metadata, 3) == (BOOKIES[3], BOOKIES[0])
    assert holders_of(metadata, 5) == (BOOKIES[2], BOOKIES[1])


def test_who_wrote_is_what_the_ledger_says_and_else_the_manifest() -> None:
    manifest = Manifest(incarnation="i").taken_over(1, LedgerId(5), 1, "old:1")
    manifest = replace(manifest, epoch=1)
    [segment] = manifest.segments
    stamped = {"dlog.epoch": b"3", "dlog.owner": b"h:9"}
    assert written_by(manifest, segment, stamped) == WrittenBy(3, "h:9")
    assert written_by(manifest, segment, {}) == WrittenBy(1, "old:1")
    assert written_by(manifest, segment, {"dlog.epoch": b"1"}) == WrittenBy(1, "old:1")
    before = replace(manifest, next_segment=4, epoch=2, owner="new:1")
    assert written_by(before, segment, {}) == WrittenBy(None, "")
