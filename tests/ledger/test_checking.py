"""What a ledger's members lack, by what they say: what is not said is unknown, never missing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.checking import Judgement, Lack, LackKind, Place, ReplicaFault, Share, judge
from ledger.ids import BookieId, EntryId
from ledger.metadata import Fragment, LedgerMetadata
from ledger.quorum import Quorum, holds
from ledger.requests import HeldAnswer, HeldQuery, Status

A, B, C, D = NAMES = tuple(BookieId(name) for name in "abcd")
LAST = 1 << 40


def ledger(
    *fragments: tuple[int, tuple[BookieId, ...]], quorum: Quorum | None = None
) -> LedgerMetadata:
    return LedgerMetadata(
        quorum=quorum or Quorum(3, 3, 2),
        fragments=tuple(Fragment(EntryId(first), bookies) for first, bookies in fragments),
    )


CLOSED = ledger((0, (A, B, C)), (10, (D, B, C))).closed(EntryId(19), 99)


def says(
    *ranges: tuple[int, int],
    first: int = 0,
    last: int = 99,
    considered: int | None = None,
    status: Status = Status.OK,
) -> Share:
    share = Share()
    answer = HeldAnswer(
        status,
        [a for a, _ in ranges],
        [b for _, b in ranges],
        considered=last if considered is None else considered,
        listed=last,
    )
    share.listed(HeldQuery(1, b"", first, last), answer)
    return share


WHOLE = {bookie: says((0, 99)) for bookie in NAMES}


def lack(
    fragment: int, index: int, bookie: BookieId, kind: LackKind, *ranges: tuple[int, int]
) -> Lack:
    return Lack(EntryId(fragment), index, bookie, ranges, kind)


def test_a_ledger_whose_members_have_everything_lacks_nothing() -> None:
    assert judge(CLOSED, WHOLE, ()) == Judgement((), ())


def test_what_a_member_denies_is_missing_in_the_fragments_that_name_it_only() -> None:
    shares = WHOLE | {A: says((0, 3), (7, 9)), B: says((0, 8), (12, 99)), D: says((10, 19))}
    assert judge(CLOSED, shares, ()).lacks == (
        lack(0, 0, A, LackKind.MISSING, (4, 6)),
        lack(0, 1, B, LackKind.MISSING, (9, 9)),
        lack(10, 1, B, LackKind.MISSING, (10, 11)),
    )


def test_nothing_beyond_what_is_settled_is_missing() -> None:
    nothing = {bookie: says() for bookie in NAMES}
    opened = ledger((0, (A, B, C)), (10, (D, B, C)))
    for metadata in (opened, opened.in_recovery()):
        judgement = judge(metadata, nothing, [D])
        assert {each.fragment for each in judgement.lacks} == {0}
        assert {each.ranges for each in judgement.lacks} == {((0, 9),)}
    ended = judge(CLOSED, nothing, ())
    assert {each.ranges for each in ended.lacks} == {((0, 9),), ((10, 19),)}
    empty = opened.closed(EntryId(9), 5)
    assert {each.fragment for each in judge(empty, nothing, ()).lacks} == {0}


def test_a_lost_member_has_to_move_whatever_it_says_also_where_it_holds_nothing() -> None:
    empty = ledger((0, (A, B, C)), (10, (A, B, D))).closed(EntryId(9), 5)
    assert judge(empty, WHOLE, [A]).lacks == (
        lack(0, 0, A, LackKind.MEMBER, (0, 9)),
        lack(10, 0, A, LackKind.MEMBER),
    )


@pytest.mark.parametrize(
    "status",
    [Status.UNREACHABLE, Status.TOO_MANY_REQUESTS, Status.WRONG_KEY, Status.BAD_REQUEST],
)
def test_who_gives_no_answer_is_unknown_and_never_lacking(status: Status) -> None:
    share = Share()
    assert share.listed(HeldQuery(1, b"", 0, 99), HeldAnswer(status)) is None
    for shares in (WHOLE | {B: share}, {name: WHOLE[name] for name in (A, C, D)}):
        assert judge(CLOSED, shares, ()) == Judgement(
            (), (Place(EntryId(0), 1, B, ((0, 9),)), Place(EntryId(10), 1, B, ((10, 19),)))
        )


def test_what_was_not_considered_is_unknown() -> None:
    """Limbo, or a damaged index page: what is listed counts, the rest is nobody's word."""
    doubtful = says((0, 2), (8, 12), considered=2)
    unheard = says((8, 12), considered=-1, status=Status.UNKNOWN)
    for share, first in ((doubtful, 3), (unheard, 0)):
        judgement = judge(CLOSED, WHOLE | {B: share}, ())
        assert judgement.lacks == ()
        assert [each.ranges for each in judgement.unknown] == [((first, 7),), ((13, 19),)]


def test_a_list_goes_on_where_the_last_answer_ended() -> None:
    share, query = Share(), HeldQuery(1, b"", 0, 99)
    cut = HeldAnswer(Status.OK, [0], [3], considered=5, listed=50)
    assert share.listed(query, cut) == 51
    damaged = HeldAnswer(Status.IO_ERROR, [], [], considered=50, listed=50)
    assert share.listed(HeldQuery(1, b"", 51, 99), damaged) is None, "it made no way"
    rest = HeldAnswer(Status.OK, [60], [99], considered=99, listed=99)
    assert share.listed(HeldQuery(1, b"", 51, 99), rest) is None
    assert list(share.denied.between(0, 99)) == [(4, 5), (51, 59)]
    assert list(share.held.between(0, 99)) == [(0, 3), (60, 99)]


def test_a_ledger_that_is_not_there_is_missing_whole() -> None:
    share = Share()
    answer = HeldAnswer(Status.NO_SUCH_LEDGER, considered=99, listed=99)
    assert share.listed(HeldQuery(1, b"", 0, 99), answer) is None
    lacks = judge(CLOSED, WHOLE | {C: share}, ()).lacks
    assert [each.ranges for each in lacks] == [((0, 9),), ((10, 19),)]


def test_what_was_on_its_way_at_the_first_look_is_not_missing_after_the_second() -> None:
    share = says((0, 10))
    share.listed(HeldQuery(1, b"", 0, 99), HeldAnswer(Status.OK, [0], [19], 99, 99))
    assert judge(CLOSED, WHOLE | {B: share}, ()) == Judgement((), ())
    later = says((0, 19))
    denied = HeldAnswer(Status.OK, [0], [10], considered=99, listed=99)
    later.listed(HeldQuery(1, b"", 0, 99), denied)
    assert judge(CLOSED, WHOLE | {B: later}, ()).lacks == (), "what it has had it keeps"


def test_what_was_read_counts_for_more_than_what_was_listed() -> None:
    share = says((0, 9))
    faults = {
        2: ReplicaFault.DAMAGED,
        3: ReplicaFault.UNREADABLE,
        5: ReplicaFault.DIFFERENT,
        6: ReplicaFault.MISSING,
        7: ReplicaFault.UNREACHABLE,
        8: ReplicaFault.REFUSED,
    }
    share.read([11, 12], faults)
    lacks = judge(CLOSED, WHOLE | {B: share}, ()).lacks
    assert lacks == (
        lack(0, 1, B, LackKind.MISSING, (6, 6)),
        lack(0, 1, B, LackKind.DAMAGED, (2, 3), (5, 5)),
        lack(10, 1, B, LackKind.MISSING, (10, 10), (13, 19)),
    )
    share.read([2, 3, 5, 6], {})
    assert [each.fragment for each in judge(CLOSED, WHOLE | {B: share}, ()).lacks] == [10]


def test_of_a_striped_ledger_only_the_entries_of_the_index_are_looked_for() -> None:
    """Index 0 of 4/2/2 holds 0, 3, 4, 7, 8, 11: nobody misses 1, 2, 5, 6 there."""
    quorum = Quorum(4, 2, 2)
    striped = ledger((0, (A, B, C, D)), quorum=quorum).closed(EntryId(11), 5)
    shares = {
        bookie: says(*((e, e) for e in range(12) if holds(index, e, quorum)))
        for index, bookie in enumerate(NAMES)
    }
    assert judge(striped, shares, ()) == Judgement((), ())
    gone = judge(striped, shares | {A: says((0, 0), (11, 11))}, ()).lacks
    assert gone == (lack(0, 0, A, LackKind.MISSING, (3, 8)),)
    assert list(gone[0].entries(quorum)) == [3, 4, 7, 8]


QUORUMS = st.sampled_from([Quorum(1, 1, 1), Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(4, 2, 1)])
IDS = st.sets(st.integers(0, 29), max_size=30)


@given(QUORUMS, IDS, IDS, IDS, st.integers(0, 29), st.booleans())
def test_each_entry_of_an_index_is_there_lacking_or_unknown(
    quorum: Quorum, held: set[int], denied: set[int], damaged: set[int], last: int, lost: bool
) -> None:
    """Against a second judge that goes through the entries one by one."""
    bookies = NAMES[: quorum.ensemble]
    second = (10, tuple(reversed(bookies)))
    metadata = ledger((0, bookies), second, quorum=quorum)
    metadata = metadata.closed(EntryId(last), 0) if last >= 9 else metadata
    share = Share()
    for entry_id in held:
        share.held.add(entry_id, entry_id)
    for entry_id in denied - held:
        share.denied.add(entry_id, entry_id)
    share.read([], dict.fromkeys(sorted(damaged), ReplicaFault.DAMAGED))
    judgement = judge(metadata, {A: share}, [A] if lost else [])
    found = {
        kind: {
            (each.fragment, entry_id)
            for each in judgement.lacks
            if each.kind is kind
            for entry_id in each.entries(quorum)
        }
        for kind in LackKind
    }
    unknown = {
        (each.fragment, entry_id)
        for each in judgement.unknown
        if each.bookie == A
        for entry_id in each.entries(quorum)
    }
    ends = [(0, 9)] if metadata.last_entry is None else [(0, min(9, last)), (10, last)]
    own = {
        (first, entry_id)
        for first, end in ends
        for entry_id in range(first, end + 1)
        if holds(0 if first == 0 else quorum.ensemble - 1, entry_id, quorum)
    }
    assert all(each.bookie == A for each in judgement.lacks)
    if lost:
        assert found[LackKind.MEMBER] == own
        assert unknown == set()
        return
    assert found[LackKind.MEMBER] == set()
    assert found[LackKind.MISSING] == {each for each in own if each[1] in denied - held}
    assert found[LackKind.DAMAGED] == {each for each in own if each[1] in damaged}
    said = held | denied | damaged
    assert unknown == {each for each in own if each[1] not in said}
