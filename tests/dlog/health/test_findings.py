"""What facts are findings of; no cluster is needed for that."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dlog.aio import Log
from dlog.health.archive import ArchiveFacts
from dlog.health.bookies import BookieFacts, BookiesFacts
from dlog.health.checks import gather_deletions
from dlog.health.findings import KIND_MAX, CheckResult, Facts, Finding, Report, Severity, named
from dlog.health.logs import DeletionsFacts, LogsFacts, Obstacle, OpeningsFacts, blocked_by
from dlog.health.repair import RepairFacts, sample
from dlog.health.servers import ServerFacts, ServersFacts
from dlog.health.store import StoreFacts
from dlog.health.survey import Reach
from ledger.ids import BookieId, EntryId
from ledger.metadata import Fragment, LedgerMetadata
from ledger.quorum import Quorum
from ledger.wire import bookie_pb2 as pb
from tests.dlog.fake_ledgers import FakeCluster

THREE = tuple(BookieFacts(bookie=f"b{at}", address=f"h{at}:1") for at in range(3))
ROOMY = pb.DirectoryUsage(path="/d", place="main", total_bytes=100, free_bytes=50)
SERVER = ServerFacts(
    bookie="b0",
    address="h0:1",
    operator_address="h0:2",
    status=pb.StatusReply(bookie="b0", version="1.0", directories=[ROOMY]),
    answered_s=0.01,
    clock_off_s=0.001,
)
WELL: tuple[Facts, ...] = (
    StoreFacts(uri="zk://h/r", instance="i", answered_s=0.002),
    BookiesFacts(bookies=THREE),
    RepairFacts(auditor="h:1", workers=2),
    LogsFacts(logs=3, elections=2, looked_at=2, led=2),
    ServersFacts(version="1.0", servers=(SERVER,)),
    DeletionsFacts(logs=3, looked_at=3, janitor="h:2", retained=1),
    OpeningsFacts(logs=3, looked_at=3, open=1, asked=1),
    ArchiveFacts(logs=2, looked_at=2, archiver="h:3"),
)


def findings(facts: Facts) -> list[tuple[Severity, str]]:
    return [(finding.severity, finding.kind) for finding in facts.findings()]


def report(*facts: Facts) -> Report:
    return Report(tuple(CheckResult(type(each).__name__, each) for each in facts))


@pytest.mark.parametrize("facts", WELL, ids=lambda each: type(each).__name__)
def test_where_nothing_is_wrong_there_is_no_finding(facts: Facts) -> None:
    assert list(facts.findings()) == []
    assert list(facts.unseen()) == []
    assert facts.summary()
    assert report(facts).healthy


def test_a_store_that_does_not_answer_is_grave_and_a_slow_one_is_wrong() -> None:
    well = StoreFacts(uri="zk://h/r", instance="i")
    assert findings(replace(well, trouble="no answer")) == [
        (Severity.CRITICAL, "store-unreachable")
    ]
    assert "does not answer" in replace(well, trouble="no answer").summary()
    assert findings(replace(well, answered_s=1.5)) == [(Severity.WARNING, "store-slow")]
    assert findings(replace(well, instance="")) == [(Severity.WARNING, "no-namespace")]


def bookies(*changed: BookieFacts) -> BookiesFacts:
    """Return facts of three, some of which are other than well."""
    by_name = {each.bookie: each for each in (*THREE, *changed)}
    return BookiesFacts(bookies=tuple(by_name.values()))


def test_a_bookie_that_is_known_and_not_there_is_wrong() -> None:
    found = bookies(replace(THREE[1], registered=False))
    assert findings(found) == [(Severity.WARNING, "bookie-away"), (Severity.WARNING, "few-bookies")]
    away = next(found.findings())
    assert "bookie b1 (last at h1:1) is known and not registered" in away.what
    assert "'dlog bookie recover b1'" in away.action
    assert found.summary() == "3 known: 1 away, 2 writable"


def test_one_that_was_given_up_or_is_emptied_is_nothing_wrong() -> None:
    retired = BookieFacts(bookie="b9", registered=False, retired=True)
    assert findings(bookies(retired)) == []
    leaving = BookieFacts(bookie="b9", registered=False, leaving=True)
    assert findings(bookies(leaving)) == [(Severity.NOTE, "bookie-away")]


def test_one_that_is_read_only_says_why_and_an_operators_word_is_only_a_note() -> None:
    full = replace(THREE[0], bookie="b3", read_only=True, reasons=("/d is 96 % full",))
    assert findings(bookies(full)) == [(Severity.WARNING, "bookie-read-only")]
    assert "accepts no new entries: /d is 96 % full" in next(bookies(full).findings()).what
    ordered = replace(full, reasons=("an operator said so",))
    assert findings(bookies(ordered)) == [(Severity.NOTE, "bookie-read-only")]
    both = replace(full, reasons=("an operator said so", "/d is 96 % full"))
    assert findings(bookies(both)) == [(Severity.WARNING, "bookie-read-only")]
    emptied = replace(full, reasons=(), leaving=True)
    assert findings(bookies(emptied)) == [(Severity.NOTE, "bookie-read-only")]
    silent = replace(full, reasons=(), silent="no answer")
    assert "reason is unknown (no answer)" in next(bookies(silent).findings()).what


def test_a_bookie_in_limbo_or_unreadable_is_wrong() -> None:
    assert findings(bookies(replace(THREE[0], limbo="in limbo: files are gone"))) == [
        (Severity.WARNING, "bookie-in-limbo")
    ]
    damaged = replace(THREE[0], registered=False, damaged="format version 9")
    assert (Severity.WARNING, "bookie-unreadable") in findings(bookies(damaged))


def test_too_few_bookies_to_acknowledge_are_grave() -> None:
    one = bookies(*(replace(each, registered=False) for each in THREE[1:]))
    assert (Severity.CRITICAL, "nothing-written") in findings(one)
    none = bookies(*(replace(each, registered=False) for each in THREE))
    assert (Severity.CRITICAL, "no-bookie") in findings(none)
    assert findings(BookiesFacts(bookies=())) == [(Severity.CRITICAL, "no-bookie")]


def test_a_cluster_that_never_had_more_bookies_is_for_logs_that_want_no_more() -> None:
    assert findings(BookiesFacts(bookies=THREE[:1])) == [(Severity.NOTE, "few-bookies")]
    refusing = replace(THREE[0], read_only=True, reasons=("full",))
    assert (Severity.CRITICAL, "nothing-written") in findings(BookiesFacts(bookies=(refusing,)))


REPAIR = RepairFacts(auditor="h:1", workers=1)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (replace(REPAIR, marked=3, looked_at=3), [(Severity.WARNING, "underreplicated")]),
        (replace(REPAIR, lost=(7,)), [(Severity.CRITICAL, "entries-lost")]),
        (replace(REPAIR, differing=(7, 8)), [(Severity.CRITICAL, "copies-differ")]),
        (replace(REPAIR, alarm="all are away"), [(Severity.CRITICAL, "audit-alarm")]),
        (replace(REPAIR, urgent=2), [(Severity.CRITICAL, "copies-short")]),
        (replace(REPAIR, short=2), [(Severity.CRITICAL, "copies-short")]),
        (
            replace(REPAIR, away=("b1",), ledgers=9, sampled=9, exposed=4),
            [(Severity.WARNING, "copies-away")],
        ),
        (replace(REPAIR, enabled=False), [(Severity.NOTE, "repair-off")]),
        (replace(REPAIR, auditor=""), [(Severity.NOTE, "no-auditor")]),
        (
            replace(REPAIR, enabled=False, marked=1, looked_at=1),
            [(Severity.WARNING, "underreplicated"), (Severity.WARNING, "repair-off")],
        ),
        (
            replace(REPAIR, auditor="", exposed=1, sampled=1, ledgers=1),
            [(Severity.WARNING, "copies-away"), (Severity.WARNING, "no-auditor")],
        ),
    ],
)
def test_what_repair_has_to_do_and_who_does_it(
    facts: RepairFacts, expected: list[tuple[Severity, str]]
) -> None:
    assert findings(facts) == expected


def test_what_repair_was_put_off_for_is_said() -> None:
    put_off = replace(REPAIR, marked=2, looked_at=2, deferred=1, deferred_why=("no bookie",))
    assert (
        "2 ledgers are known to be underreplicated; the repair of 1 was postponed: no bookie"
        in (next(put_off.findings()).what)
    )


def test_what_was_not_looked_at_is_said() -> None:
    facts = replace(REPAIR, marked=5000, looked_at=1000, ledgers=100_000, sampled=2000)
    assert list(facts.unseen()) == [
        "what is lacking of 4,000 more marked ledgers",
        "the bookies of 98,000 more ledgers",
    ]
    found = LogsFacts(logs=9, elections=9, looked_at=5, led=1, not_read=2)
    assert list(found.unseen()) == [
        "the elections of 4 more logs",
        "the manifests of 2 more logs without a leader",
    ]
    some = BookiesFacts(bookies=THREE, left_out=7, not_asked=3)
    assert list(some.unseen()) == ["7 more bookies", "why 3 more bookies are read-only"]
    assert len(report(facts, found, some).unseen) == 6


def test_logs_that_lost_their_leader_are_named() -> None:
    facts = LogsFacts(logs=2, elections=2, looked_at=2, led=1, leaderless=("orders",))
    assert findings(facts) == [(Severity.WARNING, "log-without-leader")]
    assert next(facts.findings()).what.startswith("nobody leads log orders, and its last writer")
    unread = replace(facts, leaderless=(), unread=("x",))
    assert findings(unread) == [(Severity.WARNING, "log-unreadable")]


def test_the_gravest_sign_comes_first() -> None:
    marked = replace(REPAIR, marked=1, looked_at=1)
    found = report(replace(REPAIR, auditor=""), marked, StoreFacts(uri="u", trouble="gone"))
    assert [finding.severity for finding in found.findings] == [
        Severity.CRITICAL,
        Severity.WARNING,
        Severity.NOTE,
    ]
    assert not found.healthy
    assert report(replace(REPAIR, auditor="")).healthy, "a note is nothing wrong"


def test_a_check_that_could_not_be_made_is_a_sign_itself() -> None:
    found = Report((CheckResult("logs", None, "no answer within 10 s"),))
    [finding] = found.findings
    assert (finding.severity, finding.kind) == (Severity.CRITICAL, "logs-unknown")
    assert "no answer within 10 s" in finding.what
    assert not found.healthy
    assert found.to_dict()["logs"] is None


def test_a_hundred_signs_of_one_kind_are_not_told_one_by_one() -> None:
    many = BookiesFacts(
        bookies=tuple(BookieFacts(bookie=f"b{at:03}", damaged="garbage") for at in range(100))
    )
    found = report(many).findings
    unread: list[Finding] = [finding for finding in found if finding.kind == "bookie-unreadable"]
    assert len(unread) == KIND_MAX + 1
    assert unread[-1].what == f"{100 - KIND_MAX} more are like the last one"


ONE_DEAD = bookies(replace(THREE[1], registered=False))
B1 = (frozenset({"b1"}),)
TAKEN_OVER = frozenset({"b0", "b1", "b2"})
"""A takeover marks the last ledger: who of these has which entries is to be asked."""
EXPOSED = replace(REPAIR, away=("b1",), ledgers=9, sampled=9, exposed=4)


def test_one_dead_bookie_is_one_sign_with_what_follows_from_it_below() -> None:
    lacking = replace(EXPOSED, auditor="", alarm="1 of 3 bookies are away", lacking=B1)
    marked = replace(lacking, marked=2, looked_at=2, urgent=1)
    blocked = OpeningsFacts(
        logs=1, looked_at=1, open=1, asked=1, blocked=(("orders", Obstacle("x", ("b1",))),)
    )
    for repair, below in (
        (EXPOSED, ["few-bookies", "copies-away"]),
        (lacking, ["audit-alarm", "log-cannot-be-opened", "few-bookies", "copies-away"]),
        (marked, ["audit-alarm", "copies-short", "log-cannot-be-opened", "few-bookies"]),
    ):
        grave = repair is not EXPOSED
        [finding] = report(ONE_DEAD, repair, *([blocked] if grave else [])).findings
        assert (finding.kind, finding.severity) == (
            "bookie-away",
            Severity.CRITICAL if grave else 2,
        )
        assert [each.kind for each in finding.consequences][: len(below)] == below
    shown: Any = report(ONE_DEAD, EXPOSED).to_dict()["findings"]
    assert [[each["kind"] for each in finding["consequences"]] for finding in shown] == [
        ["few-bookies", "copies-away"]
    ]


def test_what_another_cause_has_stands_alone() -> None:
    full = [replace(each, read_only=True, reasons=("full",)) for each in (THREE[0], THREE[2])]
    found = report(bookies(replace(THREE[1], registered=False), *full))
    assert [finding.kind for finding in found.findings] == [
        "nothing-written",
        "bookie-away",
        "bookie-read-only",
        "bookie-read-only",
    ], "one of two that are full is needed, too"
    other = replace(
        REPAIR, marked=2, looked_at=2, lacking=(TAKEN_OVER, frozenset({"b0"})), away=("b1",)
    )
    assert [finding.kind for finding in report(ONE_DEAD, other).findings] == [
        "bookie-away",
        "underreplicated",
    ]
    lost = replace(EXPOSED, lost=(7,))
    assert [finding.kind for finding in report(ONE_DEAD, lost).findings] == [
        "entries-lost",
        "bookie-away",
    ]
    idle = replace(REPAIR, auditor="", away=("b1",))
    assert [finding.kind for finding in report(ONE_DEAD, idle).findings] == [
        "bookie-away",
        "no-auditor",
    ]


def test_several_dead_bookies_are_one_sign_too() -> None:
    two = bookies(*(replace(each, registered=False) for each in THREE[1:]))
    [finding] = report(two, replace(EXPOSED, away=("b1", "b2"))).findings
    assert finding.what.startswith(
        "2 bookies are known and not registered: b1 (last at h1:1), b2 (last at h2:1); they do not"
    )
    assert [each.kind for each in finding.consequences] == ["nothing-written", "copies-away"]
    all_ = bookies(*(replace(each, registered=False) for each in THREE))
    [finding] = report(all_, replace(EXPOSED, away=("b0", "b1", "b2"))).findings
    assert (finding.kind, finding.what) == (
        "no-bookie",
        "no bookie is registered: 3 bookies are known (b0, b1, b2)",
    )
    assert [each.kind for each in finding.consequences] == ["copies-away"]


def test_one_that_does_not_answer_yet_is_the_cause_of_what_lacks_it() -> None:
    silent = servers(replace(SERVER, bookie="b1", reached=False, status=None))
    marked = replace(REPAIR, marked=2, looked_at=2, lacking=(*B1, TAKEN_OVER))
    [finding] = report(BookiesFacts(bookies=THREE), silent, marked).findings
    assert finding.kind == "bookie-unreachable"
    assert [each.kind for each in finding.consequences] == ["underreplicated"]


def test_names_are_listed_up_to_a_few() -> None:
    assert named("abc") == "a, b, c"
    assert named("abcdefgh") == "a, b, c, d, e and 3 more"


@pytest.mark.parametrize("count", [0, 1, 7, 10, 11, 12, 25, 1000])
def test_a_sample_has_the_newest_and_some_of_all_before(count: int) -> None:
    ids = list(range(count))
    found = sample(ids, at_most=10)
    assert len(found) == min(count, 10)
    assert found == sorted(set(found))
    assert found[-5:] == ids[-5:]
    if count > 100:
        assert found[0] == 0
        assert found[4] > count // 2


def servers(*each: ServerFacts) -> ServersFacts:
    return ServersFacts(version="1.0", servers=each)


def saying(**fields: object) -> ServersFacts:
    """Return facts of one that says this of itself."""
    status = pb.StatusReply(bookie="b0", version="1.0", **fields)  # type: ignore[arg-type]
    return servers(replace(SERVER, status=status))


def test_a_bookie_that_is_not_reached_is_wrong_and_one_that_takes_no_orders_is_not() -> None:
    gone = replace(SERVER, reached=False, status=None, silent="no answer")
    assert findings(servers(gone)) == [(Severity.WARNING, "bookie-unreachable")]
    shut = replace(SERVER, status=None, silent="it takes no orders")
    assert findings(servers(shut)) == [(Severity.NOTE, "no-orders")]
    assert servers(gone, shut).summary() == "1 of 2 reached by clients, 0 by operators"


def test_what_a_bookie_says_of_its_disks_is_told() -> None:
    full = pb.DirectoryUsage(path="/d", total_bytes=100, free_bytes=9)
    assert findings(saying(directories=[full])) == [(Severity.WARNING, "disk-filling")]
    assert "/d of bookie b0 is 91 % full" in next(saying(directories=[full]).findings()).what
    assert saying(directories=[full]).summary().endswith("the fullest disk is at 91 %")
    assert findings(saying(directories=[pb.DirectoryUsage(path="/no-answer")])) == []
    failed = pb.LedgerDirectoryStatus(path="/l", failure="I/O error")
    assert findings(saying(ledger_directories=[failed])) == [(Severity.WARNING, "directory-failed")]
    journal = pb.JournalStatus(path="/j", full=True)
    assert findings(saying(journals=[journal])) == [(Severity.WARNING, "journal-full")]
    assert findings(saying(warnings=["86 % full"])) == [(Severity.WARNING, "bookie-warns")]
    alarm = pb.CollectorAlarm(kind="untraced-deletions", reason="no trace")
    waiting = pb.CollectorStatus(waiting=3, alarms=[alarm])
    assert findings(saying(collector=waiting)) == [(Severity.WARNING, "deletions-stuck")]


@pytest.mark.parametrize(
    ("off_s", "answered_s", "differs"),
    [(None, 0.0, False), (1.9, 0.0, False), (2.1, 0.0, True), (-9.0, 1.0, True), (2.4, 1.0, False)],
)
def test_a_clock_differs_if_it_does_so_for_sure(
    off_s: float | None, answered_s: float, differs: bool
) -> None:
    facts = servers(replace(SERVER, clock_off_s=off_s, answered_s=answered_s))
    assert findings(facts) == ([(Severity.WARNING, "clock-differs")] if differs else [])
    if off_s == -9.0:
        assert "is 9.0 s behind the local clock" in next(facts.findings()).what


def test_versions_that_differ_are_a_note() -> None:
    newer = replace(SERVER, bookie="b1", status=pb.StatusReply(version="1.1"))
    assert findings(servers(SERVER, newer)) == [(Severity.NOTE, "versions-differ")]
    assert "1.0: b0; 1.1: b1" in next(servers(SERVER, newer).findings()).what
    assert findings(replace(servers(SERVER), version="0.9")) == [(Severity.NOTE, "versions-differ")]


def test_deletions_that_nobody_finishes_are_wrong() -> None:
    begun = DeletionsFacts(logs=9, looked_at=9, half_deleted=("a",), waiting=(("b", 2), ("c", 1)))
    assert findings(begun) == [
        (Severity.WARNING, "logs-half-deleted"),
        (Severity.WARNING, "ledgers-wait"),
    ]
    assert "3 trimmed ledgers not deleted yet, of b, c" in [s.what for s in begun.findings()]
    assert {severity for severity, _ in findings(replace(begun, janitor="h:1"))} == {Severity.NOTE}
    assert findings(DeletionsFacts(logs=1, looked_at=1, retained=1)) == [
        (Severity.NOTE, "no-janitor")
    ]
    unread = DeletionsFacts(logs=9, looked_at=5, unread=("x",))
    assert findings(unread) == [(Severity.WARNING, "log-unreadable")]
    assert list(unread.unseen()) == ["the manifests of 4 more logs"]


def test_what_two_checks_saw_is_said_once() -> None:
    found = report(
        DeletionsFacts(logs=1, looked_at=1, unread=("x",)),
        LogsFacts(logs=1, elections=1, looked_at=1, led=0, unread=("x",)),
    )
    assert [finding.kind for finding in found.findings] == ["log-unreadable"]


DAYS = 86_400.0


def certified(*, valid_days: float, left_days: float) -> pb.StatusReply:
    now = 1e9
    found = pb.StatusReply(bookie="b0", version="1.0")
    found.certificate.expires_s = now + left_days * DAYS
    found.certificate.begins_s = now + (left_days - valid_days) * DAYS
    return found


@pytest.mark.parametrize(
    ("valid_days", "left_days", "expected"),
    [
        (365, 31, []),
        (365, 29, [(Severity.NOTE, "certificate-expires")]),
        (365, -1, [(Severity.CRITICAL, "certificate-expired")]),
        (6, 2.5, []),
        (6, 1.5, [(Severity.NOTE, "certificate-expires")]),
    ],
)
def test_a_certificate_that_should_have_been_renewed_is_told_of(
    valid_days: float, left_days: float, expected: list[tuple[Severity, str]]
) -> None:
    status = certified(valid_days=valid_days, left_days=left_days)
    theirs = ServersFacts(
        version="1.0", servers=(replace(SERVER, status=status, clock_off_s=None),), now_s=1e9
    )
    assert findings(theirs) == expected
    assert "the next certificate expires on 20" in theirs.summary()
    ours = ServersFacts(
        version="1.0", servers=(), now_s=1e9, own_certificate=theirs.servers[0].certificate
    )
    assert findings(ours) == expected
    assert all("of this process" in finding.what for finding in ours.findings())
    assert all("of bookie b0" in finding.what for finding in theirs.findings())


def test_logs_whose_manifest_fills_up_are_named() -> None:
    facts = DeletionsFacts(logs=2, looked_at=2, filling=(("orders", 61, 17_000),))
    [finding] = facts.findings()
    assert (finding.severity, finding.kind) == (Severity.WARNING, "manifest-filling-up")
    assert "orders is 61 % full, of 17,000 segments" in finding.what
    assert "truncate" in finding.action


async def test_the_doctor_looks_at_how_full_manifests_are(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    for log, segments in (("small", 1), ("large", 12)):
        async with await Log.open(log, client=client) as writer:
            for _ in range(segments):
                await writer.append(b"x")
                await writer.roll()
    monkeypatch.setattr("dlog.manifest.FULL_BYTES", 600)
    reach = cast(Reach, SimpleNamespace(store=client.store))
    [(log, percent, segments)] = (await gather_deletions(reach)).filling
    assert (log, segments >= 12, 50 <= percent < 100) == ("large", True, True)


def test_logs_with_implausible_times_are_named() -> None:
    facts = DeletionsFacts(logs=2, looked_at=2, implausible=(("orders", "a reason"),))
    (finding,) = facts.findings()
    assert (finding.severity, finding.kind) == (Severity.WARNING, "implausible-times")
    assert "orders" in finding.what
    assert "a reason" in finding.what


MEMBERS = tuple(map(BookieId, "abc"))
OPEN = LedgerMetadata(
    quorum=Quorum(3, 3, 2),
    fragments=(
        Fragment(EntryId(0), tuple(map(BookieId, "abd"))),
        Fragment(EntryId(5), MEMBERS),
    ),
)
HONEST = {"a": (8, 9), "b": (7, 9), "c": (-1, 8)}


def test_a_log_whose_last_ledger_can_be_recovered_is_not_blocked() -> None:
    assert blocked_by(7, OPEN, "abc", HONEST) is None
    assert blocked_by(7, OPEN, "ab", {}) is None, "two of three cover"
    fresh = dict.fromkeys("abc", (4, -1))
    assert blocked_by(7, OPEN, "abc", fresh) is None, "all below the fragment is confirmed"
    assert blocked_by(7, OPEN.closed(EntryId(9), 1), "", {}) is None


def test_a_log_with_too_few_bookies_is_blocked_and_they_are_named() -> None:
    obstacle = blocked_by(7, OPEN, "a", {})
    assert obstacle is not None
    assert "ledger 7" in obstacle.reason
    assert "b, c are unavailable" in obstacle.reason
    assert obstacle.away == ("b", "c")


def test_a_log_with_a_confirmed_entry_that_nobody_holds_is_blocked_by_who_says_so() -> None:
    obstacle = blocked_by(7, OPEN, "abc", {**HONEST, "b": (10**9, 9)})
    assert obstacle is not None
    assert "entry 1000000000 is claimed to be confirmed" in obstacle.reason
    assert "(by b)" in obstacle.reason
    assert obstacle.away == ()
    without_c = {"a": (8, 9), "b": (10, 9)}
    assert blocked_by(7, OPEN, "abc", without_c) is None, "c may hold it"


def test_a_log_that_cannot_be_opened_is_grave() -> None:
    facts = OpeningsFacts(
        logs=9, looked_at=8, open=3, asked=2, blocked=(("orders", Obstacle("a reason")),)
    )
    (finding,) = facts.findings()
    assert (finding.severity, finding.kind) == (Severity.CRITICAL, "log-cannot-be-opened")
    assert "log orders cannot be opened for writing: a reason" in finding.what
    assert "dlog ledger close-at" in finding.action
    assert len(list(facts.unseen())) == 2
