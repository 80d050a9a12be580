"""When entry logs are full: by default that follows the disks."""

import pytest

from bookie.storage.config import entry_log_bytes_for

GIB = 1 << 30


@pytest.mark.parametrize(
    ("disks", "full"),
    [
        ([], 64 << 20),
        ([8 * GIB], 64 << 20),
        ([100 * GIB], round(0.2 * GIB)),
        ([100 * GIB, 5000 * GIB], round(0.2 * GIB)),
        ([5000 * GIB], GIB),
    ],
)
def test_an_entry_log_is_a_small_share_of_the_smallest_disk(disks: list[int], full: int) -> None:
    assert entry_log_bytes_for(disks) == full
