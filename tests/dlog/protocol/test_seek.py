from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from dlog.columns import Columns
from dlog.position import NO_TXID
from dlog.protocol.seek import FoundEntry, Index, ProbedEntry, ReachedTxid, Seek, Wanted
from dlog.recordbatch import BatchHeader, encode_batch, parse_header

COUNTS = st.lists(st.integers(1, 5), max_size=20)


def headers(counts: list[int], txids: list[int] | None = None) -> list[BatchHeader]:
    made, base = [], 0
    for i, count in enumerate(counts):
        last = NO_TXID if txids is None else txids[i]
        made.append(
            parse_header(
                encode_batch(
                    Columns([b""] * count), base_index=base, base_timestamp_ms=0, previous_txid=last
                )
            )
        )
        base += count
    return made


def search(wanted: Wanted, entries: list[BatchHeader]) -> tuple[FoundEntry, int]:
    seek, probes = Seek.among(wanted, len(entries) - 1), 0
    while (entry := seek.probe) is not None:
        probes += 1
        seek = seek.narrowed(entries[entry])
    return seek.found, probes


@given(counts=COUNTS, index=st.integers(0, 120))
def test_an_index_is_found_in_the_entry_that_holds_it_or_after_the_last(
    counts: list[int], index: int
) -> None:
    entries = headers(counts)
    ends = list(accumulate(counts))
    expected = next((i for i, end in enumerate(ends) if end > index), len(counts))
    found, probes = search(Index(index), entries)
    assert found == FoundEntry(expected, ([0, *ends])[expected])
    assert probes <= 5


@given(counts=COUNTS, entry=st.integers(0, 30))
def test_an_entry_is_found_with_the_index_of_its_first_record(
    counts: list[int], entry: int
) -> None:
    found, _ = search(ProbedEntry(entry), headers(counts))
    at = min(entry, len(counts))
    assert found == FoundEntry(at, sum(counts[:at]))


@given(steps=st.lists(st.integers(0, 3), max_size=20), txid=st.integers(-1, 70))
def test_a_txid_is_found_where_it_is_first_reached(steps: list[int], txid: int) -> None:
    txids = list(accumulate(steps))
    found, _ = search(ReachedTxid(txid), headers([1] * len(steps), txids))
    assert found.entry == next((i for i, t in enumerate(txids) if t >= txid), len(txids))


def test_an_empty_ledger_and_the_first_record_need_no_probe() -> None:
    assert search(Index(0), []) == (FoundEntry(0, 0), 0)
    assert search(Index(0), headers([3])) == (FoundEntry(0, 0), 0)
