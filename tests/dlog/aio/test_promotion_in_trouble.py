"""What a promotion says that the bookies do not let come true."""

from collections.abc import Sequence

import pytest

from dlog.aio import Log, Standby
from dlog.position import Record
from dlog.testing import AsyncCluster
from ledger.errors import EntryLost, LogError


@pytest.mark.slow
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "abandoned"])
async def test_a_promotion_without_bookies_can_be_tried_again_and_calls_no_entry_lost(
    *, closed: bool
) -> None:
    state: list[bytes] = []

    def apply(records: Sequence[Record]) -> None:
        state.extend(record.value for record in records)

    async with AsyncCluster() as made:
        log = await Log.open("log", uri=made.uri)
        await log.append(b"kept")
        if closed:
            await log.close()
        async with await Standby.open("log", apply, uri=made.uri) as standby:
            for index in range(3):
                await made.kill_bookie(index)
            with pytest.raises(LogError) as raised:
                await standby.promote()
            assert raised.value.retryable
            assert not isinstance(raised.value, EntryLost)
            for index in range(3):
                await made.restart_bookie(index)
            promoted = await standby.promote()
            assert promoted.last_offset == 0
            assert state == [b"kept"]
        if not closed:
            await log.abandon()
