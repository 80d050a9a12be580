"""What pages say, of facts made up here; no cluster is needed for that."""

import json
from dataclasses import replace

import pytest

from dlog.console.chart import (
    LINE_WIDTH,
    POINTS_MAX,
    SPARK_HEIGHT,
    SPARK_WIDTH,
    Rate,
    Series,
    Spark,
    segment_line,
    spark,
)
from dlog.console.cluster_state import (
    BookieSeen,
    ClusterSeen,
    LogLook,
    LogSeen,
    Repairing,
    first_seen,
)
from dlog.console.request_guard import (
    ADDRESSES_MAX,
    FAILURES_MAX,
    FAILURES_S,
    SESSION_S,
    SESSIONS_MAX,
    Sessions,
)
from dlog.console.request_guard import host_of as host
from dlog.console.views.changes import changed_settings
from dlog.console.views.cluster import card, cluster_page
from dlog.console.views.logs import PAGE_LOGS, ReplicaRow, find, ledger_list, log_page
from dlog.console.views.records import DEPTH_MAX, NODES_MAX, Form, Node, json_tree, record_row
from dlog.console.wording import (
    LIMITS,
    NO_LIMIT,
    dump,
    is_text,
    plain,
    seconds,
    setting,
    short,
    size,
)
from dlog.headers import Headers, encode_headers
from dlog.health.bookies import BookieFacts, BookiesFacts
from dlog.health.findings import CheckResult, Report
from dlog.health.repair import RepairFacts
from dlog.health.servers import ServerFacts, ServersFacts
from dlog.manifest import Manifest, Sealed, Segment
from dlog.position import Place, Record
from dlog.protocol.replica_record import ReplicaRecord
from dlog.settings import LogSettings, parse_settings, settings_facts
from ledger.ids import EntryId, LedgerId
from ledger.wire import bookie_pb2 as pb

HERE, THERE = "127.0.0.1", "192.0.2.1"
NAMES = [f"log-{number:05}" for number in range(10_000)]


def sealed(number: int, first: int, records: int) -> Segment:
    return Segment(
        number, LedgerId(number), 1, first, Sealed(EntryId(1), records, records, 0, 0, 1, 1)
    )


def status(added: int, syncs: int, sync_s: float) -> pb.StatusReply:
    work = pb.WorkStatus(added_bytes=added, journal_syncs=syncs, journal_sync_s=sync_s)
    return pb.StatusReply(bookie="b0", version="1", work=work)


def server(**fields: object) -> ServerFacts:
    return ServerFacts(**{"bookie": "b0", "address": "h:1", **fields})  # type: ignore[arg-type]


def report(*bookies: BookieFacts, servers: tuple[ServerFacts, ...] = ()) -> Report:
    facts = ServersFacts(version="1", servers=servers)
    checked = CheckResult("bookies", BookiesFacts(bookies=bookies)), CheckResult("servers", facts)
    return Report(checked)


def test_a_page_of_logs_is_cut_from_those_that_match() -> None:
    found = find(NAMES, "LOG-0", 50)
    assert (found.names[0], len(found.names)) == ("log-00050", PAGE_LOGS)
    assert (found.before, found.after, found.matching) == (0, 100, 10_000)
    assert find(NAMES, "00777", 900).names == ["log-00777"]
    assert find(NAMES, "", 10**9).names == ["log-09999"]
    assert find([], "x", 5).names == []
    assert find(["_audit", "my_audit"], "audit", 0).names == ["my_audit"]
    assert find(["_audit", "my_audit"], "", 0).names == ["my_audit"]
    assert find(["_audit", "my_audit"], "_a", 0).names == ["_audit", "my_audit"]


def test_a_page_of_ledgers_begins_with_the_first_from_there_on() -> None:
    page = ledger_list([*range(0, 1000, 10)], 505, {}, listed=True)
    assert (page.rows[0].ledger, page.before, page.after) == (510, 10, None)
    page = ledger_list([*range(0, 1000, 10)], 0, {}, listed=True)
    assert (page.rows[0].ledger, page.before, page.after) == (0, None, 500)


def test_a_curve_has_a_line_for_each_stretch_and_ends_at_the_right() -> None:
    values = [9.0, 1.0, 2.0, None, 4.0, 0.0]
    points = list(zip((0.0, 300.0, 450.0, 470.0, 480.0, 500.0), values, strict=True))
    drawn = spark(points, lambda value: f"{value:g}/s")
    assert len(drawn.lines) == 2
    assert (drawn.top, drawn.scale, drawn.span) == (4.0, "4/s", "5 min"), "300 s are drawn"
    assert drawn.lines[-1].split()[-1] == f"{SPARK_WIDTH:.0f},{SPARK_HEIGHT - 1:.1f}"
    xs = [int(point.split(",")[0]) for line in drawn.lines for point in line.split()]
    assert xs == [50, 125, 140, 150], "where its time is, however often it was asked"
    assert spark([], str) == Spark()
    assert spark([(0.0, 0.0), (1.0, 0.0)], str).top == 0.0


def test_a_curve_of_nothing_new_is_the_same() -> None:
    """Pages are sent to browsers only if they look otherwise."""
    quiet = [(2.0 * at + at % 3 / 10, 0.0) for at in range(400)]
    assert {spark(quiet[at : at + POINTS_MAX], str) for at in range(0, 200, 3)} == {
        Spark(("1,27.0 150,27.0",), 0.0)
    }


def test_segments_are_as_wide_as_they_have_records() -> None:
    segments = [sealed(1, 0, 900), sealed(2, 900, 100), Segment(3, LedgerId(3), 1, 1000)]
    line = segment_line(segments, trim_offset=450, next_offset=1000)
    first, second, third = line.bars
    assert first.width > 8 * second.width > 8 * third.width > 0
    assert third.is_open
    assert third.x + third.width == pytest.approx(LINE_WIDTH)
    assert line.trim_x == pytest.approx(first.width / 2)
    empty = segment_line([Segment(1, LedgerId(1), 1, 0)], trim_offset=0, next_offset=0)
    assert empty.bars[0].width == pytest.approx(LINE_WIDTH)


def test_a_rate_is_not_known_over_a_restart() -> None:
    rate = Rate()
    assert rate.of(100, 1.0) is None
    assert rate.of(300, 3.0) == 100.0
    assert rate.of(5, 4.0) is None
    assert rate.of(None, 5.0) is None
    assert rate.of(7, 6.0) is None
    assert rate.of(8, 7.0) == 1.0


def test_a_series_keeps_the_last_of_its_values() -> None:
    series = Series()
    for value in range(2 * POINTS_MAX):
        series.add(value, float(value))
    assert (len(series.points), series.last) == (POINTS_MAX, 2 * POINTS_MAX - 1)
    series.add(None, 1000.0)
    assert (series.points[-1], series.last) == ((1000.0, None), None)


def test_a_bookie_has_rates_once_it_was_looked_at_twice() -> None:
    seen = BookieSeen()
    seen.take_in(server(status=status(0, 0, 0.0)), 10.0)
    seen.take_in(server(status=status(4096, 20, 0.1)), 12.0)
    assert seen.added.last == 2048.0
    assert seen.sync.last == pytest.approx(0.005)
    shown = card(BookieFacts(bookie="b0"), server(status=status(4096, 20, 0.1)), seen, 12.0)
    assert [curve.now for curve in shown.curves] == ["2 KiB/s", "0 B/s", "5.0 ms"]
    assert [curve.spark.scale for curve in shown.curves] == ["", "", ""], "a point is no curve"
    seen.take_in(server(status=status(4096, 20, 0.1)), 14.0)
    shown = card(BookieFacts(bookie="b0"), server(), seen, 14.0)
    assert [curve.spark.scale for curve in shown.curves][:2] == ["2 KiB/s", ""]
    assert shown.tone == "good"


def test_a_bookie_that_does_not_answer_says_for_how_long_and_stands_first() -> None:
    cluster = ClusterSeen()
    well = BookieFacts(bookie="b0")
    cluster.take_in(report(well, servers=(server(),)), now=100.0, now_ms=1)
    assert cluster_page(cluster, 101.0).problems[0].severity == "note"
    cluster.take_in(report(well, servers=(server(reached=False),)), now=102.0, now_ms=2)
    cluster.take_in(report(well, servers=(server(reached=False),)), now=114.0, now_ms=3)
    page = cluster_page(cluster, 114.0)
    first, *others = page.problems
    assert first.what.startswith("bookie b0 is registered, but does not answer clients at h:1")
    assert first.since == "12 s"
    assert all("b0" not in each.what for each in others)
    assert page.cards[0].tone == "wrong"
    assert not page.healthy
    assert page.stale == ""
    assert cluster_page(cluster, 150.0).stale == "36 s"


def test_a_bookie_that_died_is_one_problem_before_and_after_its_session_has_ended() -> None:
    cluster = ClusterSeen()
    there = tuple(BookieFacts(bookie=f"b{at}") for at in range(3))
    reached = tuple(server(bookie=each.bookie) for each in there)
    silent = (server(bookie="b0", reached=False), *reached[1:])
    gone = (BookieFacts(bookie="b0", registered=False), *there[1:])
    cluster.take_in(report(*there, servers=reached), now=100.0, now_ms=1)
    cluster.take_in(report(*there, servers=silent), now=110.0, now_ms=2)
    cluster.take_in(report(*gone, servers=reached[1:]), now=120.0, now_ms=3)
    repair = RepairFacts(auditor="h:1", away=("b0",), ledgers=1, sampled=1, exposed=1)
    cluster.take_in(Report((CheckResult("repair", repair),)), now=120.0, now_ms=3)
    page = cluster_page(cluster, 122.0)
    [problem] = [each for each in page.problems if each.severity != "note"]
    assert problem.what.startswith("bookie b0 is known and not registered")
    assert problem.since == "12 s", "it has been silent for so long"
    assert [each.split()[0] for each in problem.consequences] == ["2", "1"]


def test_one_of_which_nothing_is_known_is_said_to_be_silent() -> None:
    cluster = ClusterSeen()
    cluster.take_in(report(BookieFacts(bookie="b0")), now=100.0, now_ms=1)
    assert cluster_page(cluster, 112.0).problems[0].what == "b0 has not answered for 12 s"


def test_trouble_that_grows_has_lasted_since_it_began() -> None:
    seen = first_seen({}, [("lacking", "1 ledger lacks copies"), ("away", "b0 is away")], 1.0)
    seen = first_seen(seen, [("lacking", "9 ledgers lack copies"), ("away", "b0 is away")], 5.0)
    assert list(seen.values()) == [1.0, 1.0]
    seen = first_seen(seen, [("away", "b0 is away"), ("away", "b1 is away")], 7.0)
    assert list(seen.values()) == [1.0, 7.0]
    seen = first_seen(seen, [("away", "b2 is away"), ("away", "b3 is away")], 9.0)
    assert list(seen.values()) == [9.0, 9.0]


def test_what_happens_to_bookies_is_told_once() -> None:
    cluster = ClusterSeen()
    for registered in (True, True, False, False, True):
        facts = BookieFacts(bookie="b0", registered=registered)
        cluster.take_in(report(facts), now=1.0, now_ms=1)
    assert [each.what for each in cluster.events] == [
        "b0 is away now; it was writable",
        "b0 is writable now; it was away",
    ]


def test_how_repair_gets_on_is_told_while_there_is_something_to_repair() -> None:
    cluster = ClusterSeen()
    assert cluster_page(cluster, 1.0).repair is None
    for bytes_per_s, left_s in ((0.0, None), (2048.0, 90.0)):
        cluster.take_in_repair(Repairing(12, bytes_per_s, left_s), now=1.0)
    shown = cluster_page(cluster, 1.0).repair
    assert shown is not None
    assert shown.now == "12 ledgers are short of copies, 2 KiB/s copied, about 90 s left"
    assert len(shown.spark.lines) == 1
    cluster.take_in_repair(Repairing(0, 0.0, 0.0), now=1.0)
    assert cluster_page(cluster, 1.0).repair is None


def test_a_takeover_is_seen_and_a_log_made_anew_is_none() -> None:
    def look(epoch: int, incarnation: str = "i") -> LogLook:
        segment = Segment(epoch, LedgerId(epoch), 1, 0)
        manifest = Manifest(
            incarnation=incarnation,
            segments=(segment,),
            next_segment=epoch + 1,
            epoch=epoch,
            owner="host:1",
        )
        return LogLook(manifest=manifest, next_offset=0)

    seen = LogSeen()
    for number, found in enumerate((look(1), look(1), look(3), LogLook(trouble="cut off"))):
        seen.take_in("orders", found, now=number, now_ms=number)
    assert [(each.before, each.epoch) for each in seen.takeovers] == [(1, 3)]
    assert seen.look.manifest is not None
    assert seen.look.trouble == "cut off"
    assert seen.take_in("orders", look(9, "j"), now=9, now_ms=9) == []


def test_json_is_a_tree_that_is_cut_where_it_is_too_large() -> None:
    tree = json_tree(b'{"a": [1, {"b": null}], "c": "x"}')
    assert tree is not None
    assert [child.name for child in tree.children] == ["a", "c"]
    assert json_tree(b"no json") is None
    assert json_tree(b"[" * 100_000) is None
    wide = json_tree(json.dumps(list(range(5_000))).encode())
    assert wide is not None
    assert len(wide.children) <= NODES_MAX + 1
    deep = json_tree(b"[" * 100 + b"]" * 100)
    assert _depth(deep) <= DEPTH_MAX + 2


def _depth(node: Node | None) -> int:
    return 0 if node is None else 1 + max(map(_depth, node.children), default=0)


def test_bytes_are_shown_whatever_they_are() -> None:
    assert plain(b"caf\xc3\xa9 \xff\x00\x1b[2J") == "café ���[2J"
    assert plain(b"x" * 5_000).endswith("…")
    assert dump(b"AB\x00").startswith("00000000  41 42 00")
    assert [size(None), size(0), size(1536), size(3 << 30)] == ["–", "0 B", "1.5 KiB", "3 GiB"]
    assert [short(7), short(0.25), short(12_345)] == ["7", "0.2", "12.3 k"]
    assert [seconds(0.004), seconds(0.118), seconds(12.0)] == ["4.0 ms", "118 ms", "12 s"]
    assert seconds(600) == "10 min"


def test_what_is_no_text_is_shown_as_bytes_by_itself() -> None:
    for value in (b"", b"caf\xc3\xa9\n\ttab", "日本".encode() * 20_000, b'{"a": 1}'):
        assert is_text(value)
    for value in (b"\xff\x00", b"\x08\x96\x01", b"caf\xe9", b"\x1b[2J", b"half \xc3"):
        assert not is_text(value)
    pairs = [("trace", b"\xfe\xff"), ("kind", b"plain"), ("kind", None)]
    headers = Headers(encode_headers(pairs) or b"")
    record = Record(
        offset=7, place=Place(1, 0, 7), txid=None, timestamp_ms=1, key=b"\x00\x01",
        value=b"\x08\x96\x01", headers=headers,
    )  # fmt: skip
    for form in (Form.TEXT, Form.JSON, Form.HEX):
        shown = record_row(record, form)
        assert shown.text.startswith("00000000  08 96 01 ")
        assert shown.key == "0x0001"
        assert shown.headers == [("trace", "0xfeff"), ("kind", "plain"), ("kind", "null")]
    assert record_row(record._replace(value=b"text"), Form.TEXT).text == "text"
    assert record_row(record._replace(key=b"\xff" * 500), Form.TEXT).key.endswith("ff …")


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("roll_bytes", 1 << 30, "1 GiB"),
        ("roll_bytes", 1_000_000_000, "1000000000 B"),
        ("record_bytes_max", 1 << 20, "1 MiB"),
        ("roll_age_s", 7200.0, "2 h"),
        ("roll_idle_s", 0.25, "250 ms"),
        ("roll_idle_s", 1.5, "1.5 s"),
        ("roll_idle_s", 0.0, "no limit"),
        ("retention_bytes", 0, "no limit"),
        ("roll_records", 0, "no limit"),
        ("roll_records", 100_000, "100000"),
        ("degraded_writes", True, "true"),
        ("codec", "zstd:3", "zstd:3"),
    ],
)
def test_settings_have_units_and_can_be_given_back(
    name: str, value: int | float | str, shown: str
) -> None:
    assert setting(name, value) == shown
    if shown != NO_LIMIT:
        facts = settings_facts(parse_settings({name: shown}))
        assert facts[name] == value


def test_each_limit_of_a_log_can_be_none() -> None:
    unlimited = settings_facts(parse_settings(dict.fromkeys(LIMITS, 0)))
    assert {name for name in unlimited if setting(name, unlimited[name]) == NO_LIMIT} == LIMITS


def test_an_empty_field_of_a_limit_means_none_and_what_is_as_it_was_is_no_change() -> None:
    present = LogSettings(retention_age_s=3600.0)
    given = {"set.retention_age_s": "", "set.roll_age_s": "2 h", "set.roll_idle_s": "no limit"}
    assert changed_settings(given, present) == {"retention_age_s": "0"}


def test_who_has_shown_the_token_is_known_for_a_while() -> None:
    sessions = Sessions("right", b"secret")
    assert not sessions.log_in("wrong", "s0", HERE, 0.0)
    assert sessions.log_in("right", "s1", HERE, 0.0)
    assert sessions.is_known("s1", SESSION_S - 1)
    assert not sessions.is_known("s1", SESSION_S)
    assert not sessions.is_known("s0", 0.0)
    assert not sessions.is_known(None, 0.0)
    assert sessions.is_form_token("s1", sessions.form_token("s1"))
    assert not sessions.is_form_token("s1", sessions.form_token("s2"))
    for number in range(SESSIONS_MAX):
        sessions.log_in("right", f"more {number}", HERE, 1.0)
    assert not sessions.is_known("s1", 1.0)


def test_wrong_tokens_shut_the_door_for_a_while_and_for_nobody_elsewhere() -> None:
    sessions = Sessions("right", b"secret")
    for _ in range(FAILURES_MAX):
        assert sessions.may_try(THERE, 1.0)
        sessions.log_in("wrong", "s", THERE, 1.0)
        sessions.log_in("wrong", "s", HERE, 1.0)
    assert not sessions.may_try(THERE, 2.0)
    assert sessions.may_try("192.0.2.2", 2.0)
    assert sessions.may_try(HERE, 2.0), "which all users of this machine have"
    assert sessions.may_try(THERE, 1.0 + FAILURES_S)


def test_what_is_remembered_of_wrong_tokens_is_bounded() -> None:
    sessions = Sessions("right", b"secret")
    for number in range(ADDRESSES_MAX):
        sessions.log_in("wrong", "s", f"address {number}", 1.0)
    for _ in range(FAILURES_MAX):
        sessions.log_in("wrong", "s", THERE, 1.0)
    assert len(sessions._failures) == ADDRESSES_MAX
    assert not sessions.may_try(THERE, 2.0)


def test_the_name_of_a_host_is_read_without_its_port() -> None:
    names = ["localhost:80", "[::1]:8080", "127.0.0.1", "a@evil:1", "[", "LOCALHOST"]
    assert [host(each) for each in names] == [
        "localhost", "::1", "127.0.0.1", "evil", "", "localhost",
    ]  # fmt: skip


def test_a_replica_shows_the_snapshot_under_way_or_what_stopped_it() -> None:
    record = ReplicaRecord(
        log="accounts",
        candidate="a",
        address="",
        process="h:1",
        role="standby",
        epoch=0,
        applied=7,
        version=2,
        since_ms=1000,
        snapshots="",
        newest_snapshot=0,
        phase="writing",
        done_bytes=2048,
    )
    manifest = Manifest(incarnation="i")

    def row(record: ReplicaRecord, end: int | None = 9) -> ReplicaRow:
        seen = LogSeen(look=LogLook(manifest=manifest, next_offset=end, replicas=[record]))
        [shown] = log_page("accounts", seen, {}, 1000).replicas
        return shown

    assert (row(record).lag, row(record).store, row(record).snapshot) == ("2", "none", "none")
    assert row(record).state == "writing a snapshot: 2 KiB"
    checked = replace(record, phase="checking", total_bytes=4096)
    assert row(checked).state == "checking a snapshot: 2 KiB of 4 KiB"
    assert row(replace(record, role="stopped", error="cannot apply")).state == "cannot apply"
    assert row(record, None).lag == row(record, None).address
