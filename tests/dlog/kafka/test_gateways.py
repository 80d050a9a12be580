"""Which gateway leads which log, as every gateway computes it from its view."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.kafka.protocol.gateways import GatewayView
from dlog.protocol.gateway_record import GATEWAYS_PATH, GatewayRecord
from leader.refusals import LifelineAddress
from ledger.errors import DamagedMetadata

LOGS = [f"log-{number}" for number in range(300)]


def gateways(*ids: int) -> list[GatewayRecord]:
    return [GatewayRecord(node_id=node_id, host=f"host-{node_id}", port=9092) for node_id in ids]


def leaders(view: GatewayView) -> dict[str, int | None]:
    found = {log: view.leader_of(log) for log in LOGS}
    return {log: None if leader is None else leader.node_id for log, leader in found.items()}


def test_nobody_leads_where_no_gateway_lives() -> None:
    assert set(leaders(GatewayView()).values()) == {None}
    assert GatewayView().controller is None


@given(st.permutations(gateways(1, 2, 3, 4)))
def test_the_leader_does_not_depend_on_the_order_of_the_list(order: list[GatewayRecord]) -> None:
    assert leaders(GatewayView(order)) == leaders(GatewayView(gateways(1, 2, 3, 4)))


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_a_gateway_that_dies_moves_the_logs_that_it_led_and_no_other(gone: int) -> None:
    before = GatewayView(gateways(1, 2, 3))
    after = before.without(gone)
    for log, leader in leaders(before).items():
        if leader == gone:
            assert leaders(after)[log] not in (gone, None)
        else:
            assert leaders(after)[log] == leader


def test_logs_are_spread_over_gateways() -> None:
    led = list(leaders(GatewayView(gateways(1, 2, 3))).values())
    assert all(70 <= led.count(node_id) <= 130 for node_id in (1, 2, 3))


def test_a_gateway_that_returns_at_its_address_leads_the_same_logs_again() -> None:
    before = GatewayView(gateways(1, 2, 3))
    returned = GatewayRecord(node_id=9, host="host-2", port=9092)
    after = GatewayView([*gateways(1, 3), returned])
    assert {log for log, leader in leaders(before).items() if leader == 2} == {
        log for log, leader in leaders(after).items() if leader == 9
    }


def test_of_two_registrations_at_one_address_the_newest_counts() -> None:
    returned = GatewayRecord(node_id=9, host="host-2", port=9092)
    view = GatewayView([returned, *gateways(1, 2)])
    assert [gateway.node_id for gateway in view.gateways] == [1, 9]


def test_the_leader_of_a_log_is_kept_by_a_stored_rule() -> None:
    """Gateways of several versions serve one cluster: what they compute must never change."""
    view = GatewayView(gateways(1, 2, 3))
    first = [leaders(view)[log] for log in LOGS[:10]]
    assert first == [1, 2, 1, 1, 3, 1, 3, 1, 2, 1]


def test_a_record_is_read_as_it_was_written() -> None:
    record = GatewayRecord(
        node_id=17,
        host="h",
        port=9092,
        since_ms=5,
        process="h:1",
        lifeline=LifelineAddress("h", 1, b"secret", "net", tls=True),
    )
    assert GatewayRecord.decode(record.encode(), path=f"{GATEWAYS_PATH}/0000000017") == record
    assert "secret" not in repr(record)


@pytest.mark.parametrize("value", [b"", b"\xff", b"\x08\x09"])
def test_a_record_that_cannot_be_read_is_damaged_metadata(value: bytes) -> None:
    with pytest.raises(DamagedMetadata):
        GatewayRecord.decode(value, path=f"{GATEWAYS_PATH}/0000000017")


def test_node_ids_ascend_in_a_view() -> None:
    ids = [gateway.node_id for gateway in GatewayView(gateways(5, 2, 9)).gateways]
    assert all(first < second for first, second in pairwise(ids))
