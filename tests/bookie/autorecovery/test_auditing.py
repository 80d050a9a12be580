"""The auditor's decisions: who is lost, when, and what is marked then."""

from typing import Any

import pytest

from bookie.autorecovery.protocol import audit
from bookie.autorecovery.protocol.audit import (
    RETRY_S,
    AuditConfig,
    BeginCheck,
    CheckKind,
    MarkLedgers,
    ReadLedgers,
    ReadMembership,
    RecordPass,
)
from ledger.ids import BookieId
from ledger.mark import MissingReplica, Reason
from ledger.protocol.procedure import Action
from tests.bookie.autorecovery.audit_rig import CHECK_S, DELAY_S, LEDGERS, Cluster
from tests.bookie.autorecovery.repair_world import LOST, ledger, names


def recorded(cluster: Cluster) -> RecordPass:
    return [action for action in cluster.actions if isinstance(action, RecordPass)][-1]


def test_a_bookie_that_is_away_for_the_delay_has_its_ledgers_marked() -> None:
    cluster = Cluster().begin()
    cluster.lose("a")
    cluster.run(DELAY_S - 1)
    assert cluster.passes() == 0
    cluster.run(1)
    assert cluster.marked() == {1: {"a"}, 4: {"a"}}  # 3 and 5 hold nothing on it
    assert recorded(cluster) == RecordPass(
        ledgers=5, marked=2, damaged=0, lost=names("a"), alarm=""
    )


def test_a_fragment_of_one_entry_is_marked() -> None:
    cluster = Cluster().begin()
    cluster.ledgers = {1: ledger((0, "abc"), last=0)}
    cluster.lose("a")
    cluster.run(DELAY_S)
    assert cluster.marked() == {1: {"a"}}


def test_a_mark_says_why_and_when() -> None:
    cluster = Cluster().begin()
    cluster.lose("a")
    cluster.run(DELAY_S)
    [marking] = cluster.markings()
    assert marking.missing[0] == (
        1,
        (MissingReplica(BookieId("a"), Reason.LOST, round((1000 + DELAY_S) * 1000)),),
    )


def test_a_bookie_that_returns_within_the_delay_marks_nothing() -> None:
    cluster = Cluster().begin()
    cluster.lose("a")
    cluster.run(DELAY_S - 1)
    cluster.bring_back("a")
    cluster.run(DELAY_S * 10)
    assert cluster.marked() == {}


def test_a_second_loss_neither_cancels_nor_shortens_a_delay() -> None:
    cluster = Cluster("abcde").begin()
    cluster.lose("a")
    cluster.run(DELAY_S - 1)
    cluster.lose("c")
    cluster.run(1)
    assert {bookie for found in cluster.marked().values() for bookie in found} == {"a"}
    cluster.run(DELAY_S - 2)
    assert {bookie for found in cluster.marked().values() for bookie in found} == {"a"}
    cluster.run(1)
    assert cluster.marked()[2] == {"c"}


def test_the_daily_check_marks_again_as_long_as_a_bookie_is_lost() -> None:
    cluster = Cluster().begin()
    cluster.lose("a")
    cluster.run(DELAY_S)
    cluster.run(CHECK_S * 3)
    assert cluster.passes() == 4


def test_a_daily_check_that_becomes_due_within_a_pass_is_made_by_it() -> None:
    cluster = Cluster().begin()
    answer, parts = cluster.answer, list[Action[Any]]()

    def slow(action: Action[Any]) -> object:
        if isinstance(action, ReadLedgers):
            parts.append(action)
            cluster.now += 10
        return answer(action)

    cluster.answer = slow  # type: ignore[method-assign]
    cluster.run(CHECK_S - DELAY_S - 5)
    cluster.lose("a")
    cluster.run(DELAY_S + 60)
    assert parts
    assert cluster.passes() == 1


def test_one_pass_serves_all_bookies_that_are_lost() -> None:
    cluster = Cluster("abcde").begin()
    cluster.lose("ab")
    cluster.run(DELAY_S)
    assert cluster.passes() == 1
    assert cluster.marked()[1] == {"a", "b"}


def test_while_more_than_half_are_away_nothing_is_marked_and_an_alarm_is_recorded_once() -> None:
    cluster = Cluster().begin()
    cluster.lose("abc")
    cluster.run(CHECK_S / 2)
    cluster.change()
    cluster.run(0)
    assert cluster.marked() == {}
    assert recorded(cluster).alarm == "3 of 4 bookies are away"
    assert sum(isinstance(action, RecordPass) for action in cluster.actions) == 2
    cluster.bring_back("bc")
    assert set(cluster.marked()) == {1, 4}
    assert recorded(cluster).alarm == ""


def test_names_of_dead_bookies_that_no_ledger_names_any_more_raise_no_alarm() -> None:
    cluster = Cluster("abcdefghij")
    cluster.away = "efghij"  # long dead, and repaired
    cluster.begin()
    cluster.run(DELAY_S)
    assert recorded(cluster).alarm == ""
    cluster.lose("a")
    cluster.run(DELAY_S)
    assert set(cluster.marked()) == {1, 4}
    assert recorded(cluster).alarm == ""


def test_dead_bookies_that_ledgers_name_count_for_the_alarm() -> None:
    cluster = Cluster("abcde")
    cluster.away = "abc"
    cluster.begin()
    cluster.run(DELAY_S * 2)
    assert recorded(cluster).alarm == "3 of 5 bookies are away"
    assert cluster.marked() == {}
    assert cluster.passes() == 1  # to find out who is named


def test_ledgers_that_cannot_be_read_may_name_anybody() -> None:
    cluster = Cluster("abcdefghij")
    cluster.away = "efghij"
    cluster.ledgers[2] = None
    cluster.begin()
    assert recorded(cluster).alarm == "6 of 10 bookies are away"


def test_half_of_the_bookies_may_be_lost() -> None:
    cluster = Cluster().begin()
    cluster.lose("ab")
    cluster.run(DELAY_S)
    assert cluster.marked()[1] == {"a", "b"}


def test_most_bookies_going_away_in_the_middle_of_a_pass_ends_it() -> None:
    cluster = Cluster().begin()
    cluster.parts = 2
    cluster.lose("a")
    cluster.between[ReadLedgers] = "abc"
    cluster.run(DELAY_S)
    assert cluster.marked() == {}


def test_who_is_back_when_a_part_of_the_ledgers_was_read_is_not_marked() -> None:
    cluster = Cluster().begin()
    cluster.lose("a")
    cluster.between[ReadLedgers] = ""
    cluster.run(DELAY_S)
    assert cluster.passes() == 1
    assert cluster.marked() == {}


def test_a_retired_name_is_given_no_time_and_counts_for_no_alarm() -> None:
    cluster = Cluster("abcdefg")
    cluster.away = cluster.retired = "aefg"
    cluster.begin()
    assert recorded(cluster).alarm == ""
    assert set(cluster.marked()) == {1, 4}


def test_a_bookie_that_is_to_be_emptied_is_marked_at_once_wherever_it_is_named() -> None:
    cluster = Cluster().begin()
    cluster.leaving = "a"
    cluster.change()
    cluster.run(0)
    assert set(cluster.marked()) == {1, 3, 4, 5}


def test_what_an_operator_sets_takes_the_place_of_the_delay() -> None:
    cluster = Cluster().begin()
    cluster.delay_s = 10.0
    cluster.lose("a")
    cluster.run(10)
    assert set(cluster.marked()) == {1, 4}


def test_damaged_metadata_are_counted_and_do_not_end_the_pass() -> None:
    cluster = Cluster().begin()
    cluster.ledgers[2] = None
    cluster.lose("a")
    cluster.run(DELAY_S)
    assert recorded(cluster).damaged == 1
    assert set(cluster.marked()) == {1, 4}


def test_a_pass_in_parts_marks_what_one_in_a_piece_does() -> None:
    cluster = Cluster().begin()
    cluster.parts = 3
    cluster.lose("a")
    cluster.run(DELAY_S)
    assert set(cluster.marked()) == {1, 4}
    assert recorded(cluster).ledgers == 5


def test_who_becomes_due_in_the_middle_of_a_pass_gets_one_of_his_own() -> None:
    cluster = Cluster("abcde").begin()
    cluster.lose("a")
    cluster.run(DELAY_S / 2)
    cluster.lose("c")
    cluster.run(DELAY_S / 2 - 1)
    cluster.parts = 2
    cluster.now += DELAY_S  # the auditor was asleep
    cluster.run(0)
    assert cluster.marked()[2] == {"c"}


@pytest.mark.parametrize("kind", [ReadMembership, ReadLedgers, MarkLedgers, RecordPass])
def test_a_pass_that_failed_begins_again(kind: type[Action[Any]]) -> None:
    cluster = Cluster().begin()
    answer = cluster.answer
    failed: list[Action[Any]] = []

    def failing(action: Action[Any]) -> object:
        in_a_pass = cluster.passes() > 0
        if isinstance(action, kind) and (in_a_pass or kind is ReadLedgers) and not failed:
            failed.append(action)
            raise LOST
        return answer(action)

    cluster.answer = failing  # type: ignore[method-assign]
    cluster.lose("a")
    cluster.run(DELAY_S + 60)
    assert failed
    assert set(cluster.marked()) == {1, 4}


@pytest.mark.parametrize("after_s", [0.0, CHECK_S])
def test_a_store_that_fails_is_not_asked_all_the_time(after_s: float) -> None:
    """Neither at the beginning, nor when the daily check is due."""
    cluster = Cluster()
    answer = cluster.answer
    if after_s:
        cluster.begin().run(after_s - 1)
    asked: list[Action[Any]] = []

    def failing(action: Action[Any]) -> object:
        asked.append(action)
        raise LOST

    cluster.answer = failing  # type: ignore[method-assign]
    if after_s:
        cluster.run(1)
    else:
        cluster.begin()
    assert cluster.wakes_at() == cluster.now + RETRY_S
    cluster.run(20 * RETRY_S)
    assert len(asked) == 21
    cluster.answer = answer  # type: ignore[method-assign]
    cluster.run(RETRY_S)
    assert recorded(cluster).alarm == ""


def test_bookies_that_change_after_a_failure_are_read_when_that_is_tried_again() -> None:
    """A store that comes and goes is not asked each time."""
    cluster = Cluster()
    answer, asked = cluster.answer, list[Action[Any]]()

    def failing(action: Action[Any]) -> object:
        asked.append(action)
        raise LOST

    cluster.answer = failing  # type: ignore[method-assign]
    cluster.begin()
    for _ in range(10):
        cluster.change()
        cluster.run(RETRY_S / 20)
    assert len(asked) == 1
    cluster.answer = answer  # type: ignore[method-assign]
    cluster.leaving = "a"
    cluster.run(RETRY_S)
    assert set(cluster.marked()) == {1, 3, 4, 5}


@pytest.mark.parametrize("kind", [ReadMembership, ReadLedgers, MarkLedgers, RecordPass])
def test_bookies_that_change_while_it_is_busy_are_read_again(kind: type[Action[Any]]) -> None:
    cluster = Cluster("abcdefgh").begin()
    cluster.lose("a")
    answer, changed = cluster.answer, list[Action[Any]]()

    def changing(action: Action[Any]) -> object:
        found = answer(action)
        if isinstance(action, kind) and not changed:
            changed.append(action)
            cluster.change()
            cluster.leaving = "c"
        return found

    cluster.answer = changing  # type: ignore[method-assign]
    cluster.run(DELAY_S)
    assert changed
    assert cluster.marked()[2] == {"c"}


def test_a_bookie_that_came_back_and_is_lost_again_is_marked_again() -> None:
    """Its ledgers were repaired, and it has others since."""
    cluster = Cluster().begin()
    for turn in (1, 2):
        cluster.lose("a")
        cluster.run(DELAY_S)
        assert cluster.passes() == turn
        cluster.bring_back("a")


def test_who_was_back_within_a_pass_is_not_marked_by_it() -> None:
    """Parts of the list were read while nobody was missing."""
    cluster = Cluster("abcdefgh").begin()
    cluster.parts = 5
    cluster.lose("a")
    cluster.leaving = ""
    answer, parts = cluster.answer, list[Action[Any]]()

    def moving(action: Action[Any]) -> object:
        if isinstance(action, ReadLedgers):
            parts.append(action)
            cluster.away = "h" if len(parts) == 1 else "a"
            cluster.leaving = "h" if len(parts) == 1 else ""
            if len(parts) == 2:
                cluster.retired = "a"
        return answer(action)

    cluster.answer = moving  # type: ignore[method-assign]
    cluster.run(DELAY_S)
    assert cluster.passes() == 2, "one of all ledgers since then"
    assert set(cluster.marked()) == {1, 4}


def test_a_name_that_came_back_counts_again_for_the_alarm() -> None:
    """That no ledger named it was so before."""
    cluster = Cluster("abcdefgh")
    cluster.known, cluster.away = "abcdefghij", "efghij"
    cluster.begin()
    assert recorded(cluster).alarm == "", "no ledger names them"
    assert cluster.passes() == 1
    cluster.bring_back("efgh")
    cluster.ledgers[6] = ledger((0, "efg"), last=9)
    cluster.ledgers[7] = ledger((0, "hab"), last=9)
    cluster.lose("aefgh")
    assert recorded(cluster).alarm == "5 of 8 bookies are away"
    assert cluster.passes() == 2, "it was found out again who is named"
    cluster.bring_back("ah")
    del cluster.ledgers[6], cluster.ledgers[7]
    cluster.lose("ah")
    assert cluster.passes() == 3
    assert recorded(cluster).alarm == "", "what was named before is so no more"


def test_who_was_back_while_it_was_asked_who_is_named_is_not_taken_for_nameless() -> None:
    cluster = Cluster("abcdefgh")
    cluster.parts = 2
    cluster.away = "cdefgh"
    answer, parts = cluster.answer, list[Action[Any]]()

    def moving(action: Action[Any]) -> object:
        if isinstance(action, ReadLedgers):
            parts.append(action)
            cluster.away = "cdfgh" if len(parts) == 1 else "cdefgh"
        return answer(action)

    cluster.answer = moving  # type: ignore[method-assign]
    cluster.begin()
    assert cluster.passes() == 2, "another finds out of the one that came back"


def test_each_pass_counts_for_itself_and_one_that_found_nobody_marks_nothing() -> None:
    cluster = Cluster().begin()
    cluster.lose("a")
    cluster.ledgers = {each: found for each, found in LEDGERS.items() if each in (1, 2, 3)}
    cluster.ledgers[9] = None
    for _ in range(2):
        cluster.run(CHECK_S)
        assert recorded(cluster) == RecordPass(
            ledgers=4, marked=1, damaged=1, lost=names("a"), alarm=""
        )
    del cluster.ledgers[1]
    markings = len(cluster.markings())
    cluster.run(CHECK_S)
    assert len(cluster.markings()) == markings
    assert recorded(cluster).ledgers == 3
    cluster.bring_back("a")
    cluster.run(CHECK_S)
    assert recorded(cluster) == RecordPass(ledgers=0, marked=0, damaged=0, lost=(), alarm="")


def test_no_more_than_some_ledgers_of_a_pass_are_urgent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "URGENT_MAX", 1)
    cluster = Cluster("abcdefgh").begin()
    cluster.lose("abc")
    cluster.run(DELAY_S)
    [marking] = cluster.markings()
    assert len(marking.urgent) == 1


def test_a_check_reads_what_takes_an_eighth_of_the_time_until_the_next() -> None:
    assert AuditConfig(check_all_s=800.0, scrub_bytes_per_s=3.0).scrub_bytes_max == 300.0


WEEK_S = 604_800.0


def slow_checks(cluster: Cluster) -> list[CheckKind]:
    """Let checks begin, and end only by `end_check`; return those that have begun."""
    answer, begun = cluster.answer, list[CheckKind]()

    def slow(action: Action[Any]) -> object:
        if isinstance(action, BeginCheck):
            begun.append(action.kind)
            return None
        return answer(action)

    cluster.answer = slow  # type: ignore[method-assign]
    return begun


def checks(cluster: Cluster, kind: CheckKind = CheckKind.LEDGERS) -> int:
    return cluster.actions.count(BeginCheck(kind))


def test_all_ledgers_are_checked_once_a_week_also_if_the_auditor_changes_every_hour() -> None:
    cluster = Cluster().begin()
    for _ in range(2 * 7 * 24 + 1):
        cluster.run(3600.0)
        cluster.begin(AuditConfig())
    assert checks(cluster) == 2
    assert checks(cluster, CheckKind.PLACEMENT) == checks(cluster, CheckKind.REPLICAS) == 14


def test_checks_that_are_due_are_made_one_after_the_other() -> None:
    cluster = Cluster()
    cluster.checked_ms.clear()
    under_way = slow_checks(cluster)
    cluster.begin()
    for done in range(1, len(CheckKind) + 1):
        cluster.run(CHECK_S / 10)
        assert under_way == list(CheckKind)[:done]
        cluster.checked_ms[under_way[-1]] = round(cluster.now * 1000)
        cluster.end_check()
    cluster.run(1)
    assert len(under_way) == len(CheckKind)


def test_what_was_read_before_a_check_ended_does_not_begin_it_again() -> None:
    cluster = Cluster().begin()
    cluster.run(WEEK_S)
    done = checks(cluster)
    cluster.checked_ms = dict.fromkeys(CheckKind, 1_000_000)
    cluster.change()
    cluster.run(0)
    assert checks(cluster) == done


def test_ledgers_with_fewer_than_qa_copies_left_are_marked_first_as_urgent() -> None:
    cluster = Cluster("abcdef").begin()
    cluster.lose("ad")
    cluster.run(DELAY_S)
    [marking] = cluster.markings()
    assert marking.urgent == {4}  # of abd two are away; 3 is empty
    assert marking.missing[0][0] == 4
    assert len(marking.missing) > 1


def test_a_bookie_that_is_only_away_for_a_moment_counts_for_what_is_urgent() -> None:
    cluster = Cluster("abcdef").begin()
    cluster.lose("a")
    cluster.run(DELAY_S - 1)
    cluster.lose("d")
    cluster.run(1)
    [marking] = cluster.markings()
    assert marking.urgent == {4}
    assert {replica.bookie for _, missing in marking.missing for replica in missing} == {"a"}


def test_where_nobody_has_checked_all_ledgers_it_is_done_at_once() -> None:
    cluster = Cluster()
    del cluster.checked_ms[CheckKind.LEDGERS]
    cluster.begin()
    assert checks(cluster) == 1
    cluster.run(WEEK_S - 1)
    assert checks(cluster) == 1


def test_a_check_that_failed_is_begun_again_after_a_while() -> None:
    cluster = Cluster()
    del cluster.checked_ms[CheckKind.LEDGERS]
    under_way = slow_checks(cluster)
    cluster.begin()
    cluster.end_check(failed=True)
    cluster.change()
    cluster.run(599)
    assert under_way == [CheckKind.LEDGERS]
    cluster.run(1)
    assert under_way == [CheckKind.LEDGERS] * 2


def test_the_pause_after_a_check_counts_from_its_end_also_if_that_was_in_a_pass() -> None:
    cluster = Cluster()
    del cluster.checked_ms[CheckKind.LEDGERS]
    under_way = slow_checks(cluster)
    cluster.begin()
    cluster.end_check(failed=True)
    cluster.now += 500
    cluster.run(100)
    assert under_way == [CheckKind.LEDGERS] * 2


def test_lost_bookies_are_marked_while_all_ledgers_are_checked() -> None:
    cluster = Cluster()
    del cluster.checked_ms[CheckKind.LEDGERS]
    under_way = slow_checks(cluster)
    cluster.begin()
    cluster.lose("a")
    cluster.run(DELAY_S)
    assert under_way == [CheckKind.LEDGERS]
    assert set(cluster.marked()) == {1, 4}


def test_nothing_is_checked_while_most_bookies_are_away() -> None:
    cluster = Cluster()
    del cluster.checked_ms[CheckKind.LEDGERS]
    cluster.away = "abc"
    cluster.begin()
    cluster.run(3600)
    assert checks(cluster) == 0
    cluster.bring_back("abc")
    assert checks(cluster) == 1
