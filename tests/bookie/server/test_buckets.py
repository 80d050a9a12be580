"""What quotas allow, to the byte: the arithmetic of buckets, with a clock of its own."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.server.metadata_lookups import Owned
from bookie.server.quota import QuotaManager, QuotaSession
from ledger.security.quotas import BURST_NS, NS, Bucket, Quota, Quotas, Subject
from tests.bookie.runs import run_of

RATES = st.integers(1, 1 << 40)


@settings(deadline=None)
@given(RATES, st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 1 << 30)), max_size=30))
def test_a_bucket_is_exact(rate: int, draws: list[tuple[int, int]]) -> None:
    """Compared with fractions: what is in it, up to a burst, less what was drawn."""
    bucket, now_ns = Bucket(rate), 0
    level = full = Fraction(BURST_NS * rate, NS)
    for pause_ns, amount in draws:
        now_ns += pause_ns
        level = min(full, level + Fraction(pause_ns * rate, NS)) - amount
        bucket.draw(amount, now_ns)
        debt_ns = max(Fraction(0), -level * NS / rate)
        assert 0 <= bucket.wait_ns(now_ns) - debt_ns < 1


@settings(deadline=None)
@given(
    RATES,
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 1 << 30)), min_size=1, max_size=30),
    st.integers(1, 4),
)
def test_who_waits_as_told_stays_within_the_rate_and_a_burst(
    rate: int, draws: list[tuple[int, int]], clients: int
) -> None:
    bucket, now_ns = Bucket(rate), 0
    free_at_ns = [0] * clients
    drawn: list[tuple[int, int]] = []
    for at, (pause_ns, amount) in enumerate(draws):
        now_ns = max(now_ns + pause_ns, free_at_ns[at % clients])
        bucket.draw(amount, now_ns)
        free_at_ns[at % clients] = now_ns + bucket.wait_ns(now_ns)
        drawn.append((now_ns, amount))
    for first, (began_ns, _) in enumerate(drawn):
        for last in range(first, len(drawn)):
            span_ns = drawn[last][0] - began_ns + BURST_NS
            # What each client drew last is not waited for yet.
            but = sum(amount for _, amount in drawn[max(first, last - clients + 1) : last + 1])
            total = sum(amount for _, amount in drawn[first : last + 1])
            assert total - but <= Fraction(span_ns * rate, NS)


@settings(deadline=None)
@given(RATES, RATES, st.integers(0, 1 << 40))
def test_a_debt_lasts_as_long_at_another_rate(rate: int, other: int, amount: int) -> None:
    bucket = Bucket(rate)
    bucket.draw(amount, 0)
    changed = bucket.at_rate(other)
    assert abs(changed.wait_ns(0) - bucket.wait_ns(0)) <= 1


def drawer(*quotas: Quota, identity: str = "", owned: Owned | None = None) -> QuotaSession:
    treasury = QuotaManager()
    treasury.learn_quotas(Quotas(tuple(sorted(quotas))))
    treasury.learn_owned(7, owned or Owned("orders/new", 3, 2), names=0)
    return QuotaSession(treasury, identity)


def logs(name: str, **rates: int) -> Quota:
    return Quota(Subject.LOGS, name, **rates)


def asks(draws: QuotaSession, ledger_id: int = 7, at_ns: int = 0) -> int:
    wait_ns, _ = draws.ask(ledger_id, at_ns, wait_ns_max=5 * NS)
    return wait_ns


def test_a_bookie_counts_what_the_ensemble_of_a_ledger_gets_together() -> None:
    """It is one of three, and sees two of three entries."""
    run = run_of(0, payload=bytes(200_000))
    draws = drawer(logs("orders/*", append_bytes_s=100_000))
    size_bytes = -(-len(run.frames) * 3 // 2)
    assert draws.append([run], 0) == (size_bytes - 100_000) * NS // 100_000


def test_the_flag_of_a_recovery_makes_an_add_no_cheaper() -> None:
    runs = [run_of(one, recovery=True) for one in range(100)]
    wait_ns = drawer(logs("*", append_entries_s=1)).append(runs, 0)
    plain = [run_of(one) for one in range(100)]
    assert wait_ns == drawer(logs("*", append_entries_s=1)).append(plain, 0) > 0


def test_of_several_quotas_the_one_that_delays_most_counts() -> None:
    draws = drawer(
        logs("orders/*", append_entries_s=10),
        logs("*", append_entries_s=1),
        logs("other", append_entries_s=1),
        Quota(Subject.IDENTITY, "cn:a", append_entries_s=2),
        identity="cn:a",
    )
    waits_ns = [draws.append([run_of(0)], 0) for _ in range(4)]
    assert waits_ns[-1] == 7 * NS, "4 entries, counted as 8, and 1 was there"
    assert set(draws.treasury.delayed_ns) >= {"logs *"}
    assert not draws.treasury.delayed_ns["logs other"]


def test_all_whom_a_quota_is_for_share_it() -> None:
    treasury = QuotaManager()
    treasury.learn_quotas(Quotas((logs("*", read_requests_s=1),)))
    treasury.learn_owned(7, Owned("a", 3, 2), names=0)
    treasury.learn_owned(8, Owned("b", 3, 2), names=0)
    one, other = QuotaSession(treasury, ""), QuotaSession(treasury, "")
    assert [asks(one), asks(other, 8), asks(one)] == [0, 0, NS]
    assert asks(other, 8, at_ns=NS) == NS


def test_what_a_read_brought_is_paid_by_the_next_one() -> None:
    draws = drawer(logs("*", read_bytes_s=100_000))
    assert asks(draws) == 0
    draws.read(7, 300_000, 0)
    assert asks(draws) == 2 * NS
    assert asks(draws, at_ns=2 * NS) == 0


def test_an_identity_that_is_not_known_has_no_quota() -> None:
    quota = Quota(Subject.IDENTITY, "*", append_entries_s=1)
    assert drawer(quota).append([run_of(one) for one in range(9)], 0) == 0


def test_a_quota_that_is_changed_counts_at_once_and_one_that_is_removed_no_more() -> None:
    draws = drawer(logs("*", append_entries_s=1))
    assert draws.append([run_of(0)], 0) > 0
    draws.treasury.learn_quotas(Quotas((logs("*", append_entries_s=1000),)))
    assert draws.append([run_of(0)], 10 * NS) == 0
    draws.treasury.learn_quotas(Quotas())
    assert not draws.treasury.is_on
    assert draws.append([run_of(0)] * 5000, 10 * NS) == 0


def test_a_log_that_is_renamed_is_under_the_quotas_of_its_new_name() -> None:
    draws = drawer(logs("old", append_entries_s=1), owned=Owned("old", 1, 1))
    draws.append([run_of(0), run_of(1)], 0)
    names = draws.treasury.names
    draws.treasury.learn_names()
    draws.treasury.learn_owned(7, Owned("old", 1, 1), names=names)
    assert draws.unknown([7]) == [7], "it was looked up before"
    draws.treasury.learn_owned(7, Owned("new", 1, 1), names=names + 1)
    assert draws.append([run_of(one) for one in range(9)], 0) == 0


def test_a_question_that_has_to_come_again_is_paid_when_it_does() -> None:
    """Else those who come again would be in debt for ever."""
    draws = drawer(logs("*", read_requests_s=1))
    waits_ns = [asks(draws) for _ in range(100)]
    assert waits_ns[:8] == [0, 0, *(one * NS for one in range(1, 7))]
    assert set(waits_ns[7:]) == {6 * NS}
