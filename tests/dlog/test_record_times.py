"""Times that applications give their records, and what is said of implausible ones."""

import pytest

from dlog.cli.output import format_time
from dlog.columns import checked, checked_many
from dlog.manifest import Manifest
from dlog.position import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN
from dlog.protocol.retention import implausible_time
from ledger.errors import InvalidValue
from ledger.ids import LedgerId
from tests.dlog.test_manifest import sealed

NOW_MS = 1_780_000_000_000
DAY_MS = 86_400_000


@pytest.mark.parametrize("time_ms", [TIMESTAMP_MS_MIN, -1, 0, NOW_MS, TIMESTAMP_MS_MAX])
def test_a_time_of_the_years_1_to_9999_is_taken(time_ms: int) -> None:
    assert checked(b"x", None, None, time_ms, None)[3] == time_ms


@pytest.mark.parametrize(
    ("time_ms", "reason"),
    [
        (NOW_MS * 1_000, r"as microseconds it would be the year 2026: divide by 1,000\)"),
        (NOW_MS * 1_000_000, r"as nanoseconds it would be the year 2026: divide by 1,000,000\)"),
        (TIMESTAMP_MS_MAX + 1, "years 1 to 9999; give milliseconds since 1970"),
        (TIMESTAMP_MS_MIN - 1, "years 1 to 9999"),
        (-(2**62), "years 1 to 9999"),
    ],
)
def test_another_number_is_refused_with_a_guess_at_its_unit(time_ms: int, reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason):
        checked(b"x", None, None, time_ms, None)
    with pytest.raises(InvalidValue, match=reason):
        checked_many([b"x", b"y"], None, None, [1, time_ms], None)


def log_with(time_ms: int, *, records: int = 3) -> Manifest:
    manifest = Manifest(incarnation="i").with_segment(1, LedgerId(7), NOW_MS - DAY_MS)
    return manifest.with_sealed(1, sealed(records, at_ms=time_ms))


@pytest.mark.parametrize(
    ("time_ms", "guess"),
    [
        (NOW_MS // 1_000, "seconds"),
        (NOW_MS + 2 * DAY_MS, "the future"),
        (NOW_MS * 1_000, "microseconds"),
    ],
)
def test_a_log_with_implausible_times_is_named_with_a_guess(time_ms: int, guess: str) -> None:
    reason = implausible_time(log_with(time_ms), NOW_MS)
    assert reason is not None
    assert guess in reason
    assert str(time_ms) in reason
    assert implausible_time(log_with(time_ms, records=0), NOW_MS) is None


@pytest.mark.parametrize("time_ms", [NOW_MS, NOW_MS + DAY_MS // 2, NOW_MS - 9000 * DAY_MS, 5_000])
def test_a_log_with_times_of_now_or_of_a_backfill_is_not(time_ms: int) -> None:
    assert implausible_time(log_with(time_ms), NOW_MS) is None


def test_a_time_that_no_calendar_has_is_shown_as_a_number() -> None:
    assert format_time(NOW_MS * 1_000) == f"{NOW_MS * 1_000} ms"
    assert format_time(TIMESTAMP_MS_MAX) == "9999-12-31 23:59:59Z"
