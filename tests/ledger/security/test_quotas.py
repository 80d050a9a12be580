"""Quotas as values, and as the metadata store keeps them."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.errors import DamagedMetadata, InvalidQuota, NoSuchQuota
from ledger.metastore.memory import MemoryStore
from ledger.security.documents import change_quotas, read_quotas
from ledger.security.quotas import BYTES_S_MIN, QUOTAS, QUOTAS_MAX, Quota, Quotas, Subject

BYTES_S = st.just(0) | st.integers(BYTES_S_MIN, 1 << 50)
NUMBERS = st.just(0) | st.integers(1, 1 << 50)
QUOTA = st.builds(
    Quota,
    st.just(Subject.LOGS),
    st.text("abc/*", min_size=1, max_size=8),
    append_bytes_s=BYTES_S,
    append_entries_s=NUMBERS,
    read_bytes_s=BYTES_S,
    read_requests_s=st.integers(1, 1 << 50),
)


@settings(deadline=None)
@given(st.lists(QUOTA, max_size=10, unique_by=lambda each: each.of))
def test_quotas_come_back_as_they_were_stored(quotas: list[Quota]) -> None:
    stored = Quotas(tuple(sorted(quotas)), "cn:alice", 5)
    assert Quotas.decode(stored.encode()) == stored


def test_a_quota_takes_the_place_of_the_one_before() -> None:
    one = Quota(Subject.LOGS, "a", append_entries_s=1)
    other = Quota(Subject.LOGS, "a", read_requests_s=2)
    assert Quotas().with_(one).with_(other) == Quotas((other,))
    assert Quotas((other,)).without(Subject.LOGS, "a") == Quotas()
    with pytest.raises(NoSuchQuota, match="no quota of identity a; 'dlog quota list'"):
        Quotas((other,)).without(Subject.IDENTITY, "a")


@pytest.mark.parametrize(
    ("subject", "name", "rates", "reason"),
    [
        (Subject.IDENTITY, "alice", (0, 1, 0, 0), "say who as KIND:NAME"),
        (Subject.LOGS, "", (0, 1, 0, 0), "say which log"),
        (Subject.LOGS, "a", (0, 0, 0, 0), "nothing is limited"),
        (Subject.LOGS, "a", (BYTES_S_MIN - 1, 0, 0, 0), "give at least 65536"),
        (Subject.LOGS, "a", (0, 0, 1, 0), "give at least 65536"),
        (Subject.LOGS, "a", (0, -1, 0, 0), "give at least 1"),
    ],
)
def test_a_quota_that_nobody_can_have_is_refused(
    subject: Subject, name: str, rates: tuple[int, int, int, int], reason: str
) -> None:
    with pytest.raises(InvalidQuota, match=reason):
        Quota(subject, name, *rates)


def test_quotas_are_bounded() -> None:
    many = [Quota(Subject.LOGS, f"{at:04}", read_requests_s=1) for at in range(QUOTAS_MAX + 1)]
    with pytest.raises(InvalidQuota, match="256 quotas are the most"):
        Quotas(tuple(many))


@pytest.mark.parametrize("value", [b"", b"\xff", b"\x08\x02", b"\x08\x01\x12\x00"])
def test_quotas_that_are_not_understood_are_not_taken_for_fewer(value: bytes) -> None:
    with pytest.raises(DamagedMetadata):
        Quotas.decode(value)


async def test_of_two_changes_at_once_neither_is_lost() -> None:
    store = MemoryStore("memory://quotas", "quotas")
    quotas = [Quota(Subject.LOGS, name, read_requests_s=1) for name in "ab"]
    changes = [
        change_quotas(store, lambda found, one=each: found.with_(one), by="the test")  # type: ignore[misc]
        for each in quotas
    ]
    assert await asyncio.gather(*changes) == [True, True]
    assert (await read_quotas(store)).quotas == tuple(quotas)
    assert (await store.get(QUOTAS)).version == 1
    same = await change_quotas(store, lambda found: found.with_(quotas[0]), by="the test")
    assert not same
    await store.close()
