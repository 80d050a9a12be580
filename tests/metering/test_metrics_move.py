"""Each metric that is declared is counted by something that happens in a small real cluster."""

from pathlib import Path

import pytest

from tests.documents.metrics_page import DECLARED
from tests.metering import happenings
from tests.metering.rig import Seen, whole_cluster

pytestmark = [pytest.mark.slow, pytest.mark.spark]  # tables of archived records need pyarrow

ONE_VALUE = frozenset({"dlog_bookie_info", "dlog_bookie_disk_total_bytes"})
"""They say what does not change."""


async def test_each_metric_that_is_declared_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen()
    for happen in happenings.ALL:
        async with whole_cluster(tmp_path / happen.__name__, 4, seen) as cluster:
            with monkeypatch.context() as patch:
                await happen(cluster, patch)
    declared = [metric for metrics in DECLARED.values() for metric in metrics]
    never = [each.name for each in declared if not seen.moved(each)]
    assert " ".join(sorted(set(never) - ONE_VALUE)) == ""
    assert all(seen.values[name] for name in ONE_VALUE)
