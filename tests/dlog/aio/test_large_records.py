"""The largest records there may be, through real bookies."""

import pytest

from dlog import Log, RecordTooLarge
from dlog.settings import RECORD_BYTES_LIMIT
from dlog.testing import cluster

MIB = 1024 * 1024


def test_a_record_of_a_mebibyte_is_the_largest_unless_asked_otherwise() -> None:
    with cluster() as made, Log.open("log", uri=made.uri) as log:
        log.append(bytes(MIB))
        with pytest.raises(RecordTooLarge, match="larger record_bytes_max"):
            log.append(bytes(MIB + 1))
        with pytest.raises(RecordTooLarge):
            log.append(bytes(MIB), key=b"k")
        assert log.append(b"the log goes on").offset == 1


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_records_of_sixteen_mebibytes_are_kept_whole(codec: str) -> None:
    value = bytes(range(256)) * (RECORD_BYTES_LIMIT // 256)
    settings = {"record_bytes_max": RECORD_BYTES_LIMIT, "codec": codec}
    with cluster() as made:
        with Log.open("log", uri=made.uri, settings=settings) as log:
            futures = [log.append_async(each) for each in (b"before", value, value, b"after")]
            log.flush()
            assert [future.result().offset for future in futures] == [0, 1, 2, 3]
        with Log.tail("log", uri=made.uri, follow=False) as reader:
            assert [record.value == value for record in reader] == [False, True, True, False]
