"""Commands, the table of clients, proposals and the replicated state: decisions without a log."""

from collections.abc import Callable
from contextlib import suppress
from enum import Enum, IntEnum
from io import BytesIO
from typing import Any, BinaryIO, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog import (
    ApplyFailed,
    Command,
    CommandTooNew,
    DamagedCommand,
    DamagedSnapshot,
    InvalidResult,
    InvalidValue,
    LeaderMark,
    RequestForgotten,
    RequestId,
    StateDiverged,
    StateMachine,
    StateNotRestored,
)
from dlog.protocol import client_table, snapshot
from dlog.protocol.client_table import (
    REQUESTS_MAX,
    RESULT_BYTES_MAX,
    ClientTable,
    Forgotten,
    decode_result,
    encode_result,
)
from dlog.protocol.command import (
    CommandEnvelope,
    Origin,
    StateDigest,
    decode,
    encode_command,
    encode_digest,
    encode_mark,
)
from dlog.protocol.proposals import Proposals
from dlog.protocol.replicated_state import AppliedCommand, ReplicatedState

ORIGIN = Origin(bytes(range(16)), 7)
MARK = LeaderMark(3, "app-1", "https://app-1:8000")


def envelope(
    payload: bytes = b"pay", request: RequestId | None = None, version: int = 1
) -> CommandEnvelope:
    return CommandEnvelope(payload, version, ORIGIN, request)


class Sums(StateMachine):
    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.total = 0

    def apply(self, command: Command) -> object:
        self.commands.append(command)
        self.total += int(command.payload)
        return self.total


def state() -> ReplicatedState[Sums]:
    return ReplicatedState("log", Sums())


M = TypeVar("M", bound=Sums)


def applied(sums: ReplicatedState[M], *envelopes: CommandEnvelope) -> list[AppliedCommand]:
    first = sums.offset
    stored = [(first + i, 1000, encode_command(each)) for i, each in enumerate(envelopes)]
    results = sums.apply(stored)
    return [each for each in results if isinstance(each, AppliedCommand)]


# What is stored.


@pytest.mark.parametrize("request_id", [None, RequestId("client-7", 0), RequestId("ä", 2**63 - 1)])
@pytest.mark.parametrize("payload", [b"", b"pay", bytes(1000)])
def test_a_command_is_read_as_it_was_written(payload: bytes, request_id: RequestId | None) -> None:
    written = envelope(payload, request_id, version=65535)
    assert decode(encode_command(written), log="log", offset=0) == written


def test_a_mark_is_read_as_it_was_written() -> None:
    for mark in (MARK, LeaderMark(2**63, "", "")):
        assert decode(encode_mark(mark), log="log", offset=0) == mark


def test_what_is_no_command_is_a_typed_error_that_names_its_offset() -> None:
    whole = encode_command(envelope(b"", RequestId("client", 1)))
    bad = [whole[:length] for length in range(len(whole))]
    bad += [encode_mark(MARK)[:length] for length in range(4, len(encode_mark(MARK)))]
    bad += [encode_mark(MARK) + b"x", b"xC" + whole[2:], whole[:3] + b"\x09" + whole[4:]]
    bad.append(whole[:2] + b"\0" + whole[3:])  # version 0
    for value in bad:
        with pytest.raises(DamagedCommand, match="offset 5"):
            decode(value, log="log", offset=5)


def test_a_command_of_a_later_format_stops_who_cannot_read_it() -> None:
    value = bytearray(encode_command(envelope()))
    value[2] = 2
    with pytest.raises(CommandTooNew, match="format version 2") as caught:
        decode(bytes(value), log="log", offset=5)
    assert not caught.value.retryable


def test_a_number_without_a_client_is_damage() -> None:
    value = bytearray(encode_command(envelope()))
    value[4 + 2 + 16 + 8] = 1
    with pytest.raises(DamagedCommand, match="no client"):
        decode(bytes(value), log="log", offset=0)


@pytest.mark.parametrize(
    ("client", "number"),
    [
        *(("", 1), ("x" * 256, 1), ("a\nb", 1), ("\ud800", 1), (b"client", 1), (None, 1)),
        *(("client", number) for number in (-1, 2**63, 1.5, True, "1", None)),
    ],
)
def test_a_request_id_that_cannot_be_stored_is_refused(client: Any, number: Any) -> None:
    with pytest.raises(InvalidValue):
        RequestId(client, number)


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "other"


class Number(int):
    def __int__(self) -> int:
        return 7


class Client(str, Enum):  # noqa: UP042 - as applications have it, whose text is another
    BILLING = "billing"


class Priority(IntEnum):
    LOW = 3


CLIENTS = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=60)
NUMBERS = st.integers(0, 2**63 - 1)


@given(
    payload=st.binary(),
    client=CLIENTS | CLIENTS.map(Text) | st.just(Client.BILLING),
    number=NUMBERS | NUMBERS.map(Number) | st.just(Priority.LOW),
    version=st.integers(0, 2**16 - 1),
)
def test_the_leader_applies_the_same_as_its_followers_down_to_the_types(
    payload: bytes, client: str, number: int, version: int
) -> None:
    class Kept(StateMachine):
        def __init__(self) -> None:
            self.done: object = None

        def apply(self, command: Command) -> object:
            assert command.request_id is not None
            client, number = command.request_id.client, command.request_id.number
            values = (*command, client, number)
            self.done = [(type(each), repr(each)) for each in values]
            return None

    Kept.version = 2**16 - 1
    stored = envelope(payload, RequestId(client, number), version)
    leader, follower = (ReplicatedState("log", Kept()) for _ in range(2))
    leader.apply([(0, 5, stored)])
    follower.apply([(0, 5, encode_command(stored))])
    assert leader.machine.done == follower.machine.done
    assert leader.machine.done is not None
    assert stored.request_id is not None
    assert str.__eq__(stored.request_id.client, client)
    assert int.__eq__(stored.request_id.number, number)


# Results.


def nested(times: int = 100_000) -> list[object]:
    result: list[object] = []
    for _ in range(times):
        result = [result]
    return result


@pytest.mark.parametrize(
    "result",
    [None, True, 5, 2**8192 - 1, 1.5, "text", b"bytes", b"", [1, ["a"]], {"a": None}, nested(99)],
)
def test_a_result_is_kept_as_it_is(result: object) -> None:
    assert decode_result(encode_result(result)) == result


@pytest.mark.parametrize(
    "result",
    [(1,), {1: "a"}, {1}, float("nan"), object(), bytes(RESULT_BYTES_MAX), nested(101), [2**8192]],
)
def test_a_result_that_would_change_or_is_too_large_is_refused(result: object) -> None:
    with pytest.raises(InvalidResult):
        encode_result(result)


def test_damaged_results_are_typed_errors() -> None:
    for encoded in (b"", b"x", b"j", b"j{", b"j\xff", b"e1", b'e["a"]', b"e\xff"):
        with pytest.raises(DamagedSnapshot):
            decode_result(encoded)


# The table.


def test_a_request_is_found_by_its_client_and_number_alone() -> None:
    table = ClientTable()
    assert table.find(RequestId("a", 1)) is None
    table.put(RequestId("a", 1), b"one")
    assert table.find(RequestId("a", 1)) == b"one"
    assert table.find(RequestId("a", 2)) is None
    assert table.find(RequestId("b", 1)) is None


def test_numbers_may_come_in_any_order_within_what_is_kept() -> None:
    table = ClientTable()
    for number in (5, 3, 9, 4):
        table.put(RequestId("a", number), b"%d" % number)
    assert [table.find(RequestId("a", number)) for number in (3, 4, 5, 9)] == [
        b"3",
        b"4",
        b"5",
        b"9",
    ]


def test_a_number_below_those_that_are_kept_is_not_taken_for_a_new_one() -> None:
    table = ClientTable()
    for number in range(10, 10 + REQUESTS_MAX + 1):
        table.put(RequestId("a", number), b"")
    assert table.find(RequestId("a", 10)) == Forgotten(10)
    assert table.find(RequestId("a", 3)) == Forgotten(10)
    assert table.find(RequestId("a", 11)) == b""


@given(st.permutations(range(1, REQUESTS_MAX + 9)), st.integers(0, REQUESTS_MAX))
def test_the_largest_numbers_are_kept_in_whatever_order_they_come(
    numbers: list[int], restored_at: int
) -> None:
    table = ClientTable()
    for at, number in enumerate(numbers):
        if at == restored_at:
            table = ClientTable.decode(b"".join(table.encode()))
        if table.find(RequestId("a", number)) is None:
            table.put(RequestId("a", number), b"%d" % number)
    kept = [number for number in numbers if table.find(RequestId("a", number)) == b"%d" % number]
    assert sorted(kept) == sorted(numbers)[-REQUESTS_MAX:]


def test_the_client_that_was_idle_for_longest_is_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_table, "CLIENTS_MAX", 2)
    table = ClientTable()
    table.put(RequestId("a", 1), b"")
    table.put(RequestId("b", 1), b"")
    table.put(RequestId("a", 2), b"")
    table.put(RequestId("c", 1), b"")
    assert table.find(RequestId("b", 1)) is None
    assert table.find(RequestId("a", 1)) == b""
    assert (len(table), table.forgotten) == (2, 1)


def test_the_bytes_of_the_table_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_table, "TABLE_BYTES_MAX", 5000)
    table = ClientTable()
    for client in range(20):
        table.put(RequestId(f"client-{client}", 1), bytes(1000))
        assert table.size_bytes <= 5000
    assert table.find(RequestId("client-19", 1)) == bytes(1000)
    assert table.find(RequestId("client-0", 1)) is None


def encoded_table() -> tuple[ClientTable, bytes]:
    table = ClientTable()
    for number in range(REQUESTS_MAX + 5):
        table.put(RequestId("busy", number), b"%d" % number)
    table.put(RequestId("ä", 2**63 - 1), b"last")
    return table, b"".join(table.encode())


def test_a_table_is_read_as_it_was_written_with_its_order_and_its_size() -> None:
    table, encoded = encoded_table()
    again = ClientTable.decode(encoded)
    assert b"".join(again.encode()) == encoded
    assert again.size_bytes == table.size_bytes
    assert again.find(RequestId("busy", 3)) == Forgotten(4)


def test_a_damaged_table_is_a_typed_error() -> None:
    _, encoded = encoded_table()
    for length in range(len(encoded)):
        with pytest.raises(DamagedSnapshot):
            ClientTable.decode(encoded[:length])
    with pytest.raises(DamagedSnapshot):
        ClientTable.decode(encoded + b"x")


# The state.


def test_commands_are_applied_with_their_place_and_the_time_of_their_leader() -> None:
    sums = state()
    assert [each.result for each in applied(sums, envelope(b"1"), envelope(b"2"))] == [1, 3]
    assert sums.offset == 2
    assert sums.machine.commands[1] == Command(b"2", 1, 1000, 1, None)


def test_a_repeated_request_has_no_second_effect_and_the_first_result() -> None:
    sums, request = state(), RequestId("a", 1)
    first, other, again = applied(
        sums, envelope(b"5", request), envelope(b"2"), envelope(b"5", request)
    )
    assert (first.result, other.result, again.result) == (5, 7, 5)
    assert sums.machine.total == 7


def test_a_request_that_may_have_been_done_is_refused_and_others_are_applied() -> None:
    sums = state()
    applied(sums, *(envelope(b"1", RequestId("a", i)) for i in range(REQUESTS_MAX + 1)))
    late, other = applied(sums, envelope(b"1", RequestId("a", 0)), envelope(b"1"))
    assert isinstance(late.error, RequestForgotten)
    assert late.error.outcome_unknown
    assert other.result == REQUESTS_MAX + 2


def test_what_apply_raises_stops_the_state_before_that_record() -> None:
    sums = state()
    one, failed = applied(sums, envelope(b"1"), envelope(b"no number"), envelope(b"2"))
    assert one.result == 1
    assert failed.error is sums.failure
    assert isinstance(sums.failure, ApplyFailed)
    assert sums.failure.offset == sums.offset == 1
    assert isinstance(sums.failure.__cause__, ValueError)
    assert sums.failure.__cause__.__traceback__ is not None
    assert applied(sums, envelope(b"2")) == []
    assert sums.machine.total == 1


def test_a_result_that_cannot_be_kept_is_an_error_of_its_request_alone_and_of_each_repeat() -> None:
    class Tuples(Sums):
        def apply(self, command: Command) -> object:
            return (super().apply(command),)

    tuples = ReplicatedState("log", Tuples())
    request = RequestId("a", 1)
    [without] = applied(tuples, envelope(b"1"))
    assert isinstance(without, AppliedCommand)
    assert without.result == (1,)
    for told in ("(3,)", "was done before"):
        [outcome] = applied(tuples, envelope(b"2", request))
        assert isinstance(outcome.error, InvalidResult)
        assert told in str(outcome.error)
    assert tuples.failure is None
    assert (tuples.offset, tuples.machine.total) == (3, 3)
    table = ClientTable.decode(b"".join(tuples.clients.encode()))
    assert table.find(request) == tuples.clients.find(request)


class Unprintable:
    def __repr__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize("result", [lambda: 10**5000, nested, Unprintable, object])
def test_no_result_stops_the_state_and_the_table_is_the_same_whatever_its_text(
    result: Callable[[], object],
) -> None:
    class Returns(Sums):
        def apply(self, command: Command) -> object:
            super().apply(command)
            return result()

    tables = []
    for _ in range(2):
        returning = ReplicatedState("log", Returns())
        [outcome] = applied(returning, envelope(b"1", RequestId("a", 1)))
        assert isinstance(outcome.error, InvalidResult)
        assert returning.failure is None
        assert returning.offset == 1
        assert returning.clients.find(RequestId("a", 1)) == client_table.NO_RESULT
        tables.append(b"".join(returning.clients.encode()))
    assert tables[0] == tables[1]


def test_a_state_that_failed_half_way_is_not_captured() -> None:
    sums = state()
    applied(sums, envelope(b"1"), envelope(b"no number"))
    with pytest.raises(ApplyFailed) as caught:
        sums.capture("life", now_ms=0)
    assert caught.value is sums.failure
    assert caught.value.outcome_unknown, "the command is in the log"


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize("error", [Wordless(), KeyboardInterrupt()])
def test_whatever_comes_out_of_apply_stops_the_state(error: BaseException) -> None:
    class Raises(Sums):
        def apply(self, command: Command) -> object:
            raise error

    raising = ReplicatedState("log", Raises())
    with suppress(KeyboardInterrupt):
        applied(raising, envelope())
    assert type(error).__name__ in str(raising.failure)


def test_a_command_of_a_later_version_of_the_application_stops_the_state() -> None:
    sums = state()
    assert applied(sums, envelope(b"1", version=2)) == []
    assert isinstance(sums.failure, CommandTooNew)
    assert (sums.failure.version, sums.failure.known, sums.offset) == (2, 1, 0)


def test_a_mark_takes_an_offset_and_says_who_leads() -> None:
    sums = state()
    assert sums.apply([(0, 0, encode_mark(MARK))]) == [MARK]
    assert (sums.leader, sums.offset, sums.machine.commands) == (MARK, 1, [])


# Digests.


class Digested(Sums):
    digest_every = 100

    def digest(self) -> bytes | None:
        return b"%d" % self.total


def test_a_digest_is_made_where_it_is_due_and_the_same_one_is_passed() -> None:
    digested = ReplicatedState("log", Digested())
    ones = [(offset, 0, encode_command(envelope(b"1"))) for offset in range(250)]
    digests = [each for each in digested.apply(ones) if isinstance(each, StateDigest)]
    assert digests == [StateDigest(100, b"100"), StateDigest(200, b"200")]
    stored = [(250, 0, encode_digest(digests[0])), (251, 0, encode_digest(StateDigest(50, b"?")))]
    assert digested.apply(stored) == []
    assert digested.failure is None, "nobody here knows the state at offset 50 any more"
    assert digested.offset == 252


def test_another_digest_than_the_leaders_stops_the_state_and_says_where() -> None:
    digested = ReplicatedState("log", Digested())
    digested.apply([(offset, 0, encode_command(envelope(b"1"))) for offset in range(150)])
    digested.apply([(150, 0, encode_digest(StateDigest(100, b"99")))])
    assert isinstance(digested.failure, StateDiverged)
    assert (digested.failure.offset, digested.offset) == (100, 150)


@pytest.mark.parametrize("digest", [b"", bytes(65), "text", ZeroDivisionError()])
def test_what_is_no_digest_never_comes_to_the_log(digest: object) -> None:
    class Wrong(Digested):
        def digest(self) -> Any:
            if isinstance(digest, Exception):
                raise digest
            return digest

    wrong = ReplicatedState("log", Wrong())
    outcomes = wrong.apply([(at, 0, encode_command(envelope(b"1"))) for at in range(101)])
    assert not any(isinstance(each, StateDigest) for each in outcomes)
    assert isinstance(wrong.failure, ApplyFailed)
    assert wrong.offset == 100
    if isinstance(digest, bytes):
        with pytest.raises(InvalidValue):
            encode_digest(StateDigest(100, digest))


def test_a_damaged_digest_is_a_typed_error() -> None:
    whole = encode_digest(StateDigest(7, b"d"))
    assert decode(whole, log="log", offset=0) == StateDigest(7, b"d")
    for value in (*(whole[:length] for length in range(len(whole))), whole + bytes(64)):
        with pytest.raises(DamagedCommand):
            decode(value, log="log", offset=0)


# Proposals.


def test_a_proposal_leaves_once_by_its_origin() -> None:
    proposals: Proposals[str] = Proposals(bytes(16))
    request = RequestId("a", 1)
    origin = proposals.propose(1, request, "waiter")
    assert proposals.waiter_of(request) == "waiter"
    assert proposals.leave(Origin(bytes(range(16)), origin.sequence)) is None
    assert proposals.leave(origin) == "waiter"
    assert proposals.leave(origin) is None
    assert proposals.waiter_of(request) is None


def test_the_mark_of_a_later_epoch_settles_what_earlier_ones_proposed() -> None:
    proposals: Proposals[str] = Proposals(bytes(16))
    proposals.propose(1, None, "first")
    proposals.propose(2, RequestId("a", 1), "second")
    own = proposals.propose(4, None, "third")
    assert proposals.withdraw_before(2) == ["first"]
    assert proposals.withdraw_before(4) == ["second"]
    assert proposals.waiter_of(RequestId("a", 1)) is None
    assert proposals.leave(own) == "third"
    assert len(proposals) == 0


def test_giving_up_returns_all_that_wait() -> None:
    proposals: Proposals[str] = Proposals(bytes(16))
    proposals.propose(1, RequestId("a", 1), "first")
    proposals.propose(1, None, "second")
    assert proposals.give_up() == ["first", "second"]
    assert len(proposals) == 0


class KeptSums(Sums):
    def snapshot(self, out: BinaryIO) -> None:
        out.write(b"%d" % self.total)

    def restore(self, source: BinaryIO) -> None:
        self.total = int(source.read())


def test_a_snapshot_has_the_last_txid_of_what_is_in_it() -> None:
    sums = ReplicatedState("log", KeptSums())
    assert sums.capture("life", now_ms=1).header.txid is None
    sums.apply([(0, 1000, encode_command(envelope(b"1")))], last_txid=7)
    sums.apply([(1, 1000, encode_command(envelope(b"1")))])
    captured = sums.capture("life", now_ms=1)
    assert captured.header.txid == 7
    restored = ReplicatedState("log", KeptSums())
    restored.restore(captured.header, b"".join(captured.table), BytesIO(b"2"))
    assert (restored.txid, restored.machine.total) == (7, 2)


class Streamed(KeptSums):
    """Sees damage while it reads, before the checksum at the end is compared."""

    def snapshot(self, out: BinaryIO) -> None:
        out.write(b"1\n" * self.total)

    def restore(self, source: BinaryIO) -> None:
        self.total = sum(map(int, source))


class Careless(Streamed):
    def restore(self, source: BinaryIO) -> None:
        with suppress(Exception):
            super().restore(source)


class Closing(Streamed):
    def restore(self, source: BinaryIO) -> None:
        with source:
            super().restore(source)


def restored(
    machine: KeptSums,
    monkeypatch: pytest.MonkeyPatch,
    *,
    damaged: bytes = b"",
    state: ReplicatedState[KeptSums] | None = None,
) -> ReplicatedState[KeptSums]:
    """A state that continues from a snapshot of 100 ones, read in small pieces."""
    monkeypatch.setattr(snapshot, "PIECE_BYTES", 16)
    sums = ReplicatedState("log", Streamed())
    sums.apply([(0, 1000, encode_command(envelope(b"100")))])
    captured, out = sums.capture("life", now_ms=1), BytesIO()
    snapshot.write_snapshot(out, captured.header, captured.table, captured.write_state)
    whole = bytearray(out.getvalue())
    at = whole.index(b"1\n1\n")
    whole[at : at + len(damaged)] = damaged
    state = state or ReplicatedState("log", machine)
    state.restore(*snapshot.read_snapshot(BytesIO(bytes(whole)), len(whole)))
    return state


@pytest.mark.parametrize("machine", [Streamed, Careless])
@pytest.mark.parametrize("damaged", [b"2", b"x"])
def test_damage_is_damage_though_the_machine_finds_it_first_or_ignores_it(
    monkeypatch: pytest.MonkeyPatch, machine: type[Streamed], damaged: bytes
) -> None:
    assert restored(machine(), monkeypatch).machine.total == 100
    with pytest.raises(DamagedSnapshot):
        restored(machine(), monkeypatch, damaged=damaged)


def test_what_a_machine_raises_for_a_whole_snapshot_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Fails(Streamed):
        def restore(self, source: BinaryIO) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        restored(Fails(), monkeypatch)
    with pytest.raises(ValueError, match="invalid literal"):
        restored(Closing(), monkeypatch, damaged=b"x")


def test_a_state_that_was_restored_in_part_is_of_no_use_until_one_is_restored_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = ReplicatedState[KeptSums]("log", Streamed())
    with pytest.raises(DamagedSnapshot):
        restored(state.machine, monkeypatch, damaged=b"x", state=state)
    uses: list[Callable[[], object]] = [
        state.check,
        lambda: state.capture("life", now_ms=1),
        lambda: state.apply([(0, 1000, encode_command(envelope(b"1")))]),
    ]
    for use in uses:
        with pytest.raises(StateNotRestored) as caught:
            use()
        assert caught.value.retryable
    restored(state.machine, monkeypatch, state=state)
    for use in uses[:2]:
        use()
    assert applied(state, envelope(b"1"))[0].result == 101
