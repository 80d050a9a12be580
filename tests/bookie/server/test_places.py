"""How many connections there may be, from where, and who makes room."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.errors import InvalidSetting
from bookie.server.limits import ClientLimits, ConnectionSlots, RejectReason
from ledger.security.names import source_of


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "know", "leave"]), st.integers(0, 30), st.integers(0, 3))
    )
)
def test_no_bound_is_ever_passed_and_no_place_is_lost(
    steps: list[tuple[str, int, int]],
) -> None:
    limits = ClientLimits(
        connections_max=12, connections_per_address_max=5, pending_handshakes_max=8
    )
    places = ConnectionSlots[int](limits)
    there: dict[int, tuple[int, bool]] = {}
    for step, one, source in steps:
        if step == "take" and one not in there:
            refusal = places.take(one, str(source))
            if refusal is None:
                there[one] = (source, True)
            while (oldest := places.surplus()) is not None:
                assert oldest == next(at for at, (_, pending) in there.items() if pending)
                places.leave(oldest)
                del there[oldest]
        elif step == "know" and one in there:
            places.know(one)
            there[one] = (there[one][0], False)
        elif step == "leave":
            places.leave(one)
            there.pop(one, None)
        assert len(places) == len(there) <= 12
        assert places.pending_handshakes == sum(pending for _, pending in there.values()) <= 8
        for each in range(4):
            of_it = [pending for source, pending in there.values() if source == each]
            assert len(of_it) <= 5
            assert sum(of_it) <= 2


def test_each_refusal_says_what_there_is_too_much_of() -> None:
    places = ConnectionSlots[int](
        ClientLimits(connections_max=4, connections_per_address_max=3, pending_handshakes_max=8)
    )
    for one in range(2):
        assert places.take(one, "a") is None
    assert places.take(2, "a") == (
        RejectReason.ADDRESS,
        "2 from its address have not said yet what they want",
    )
    places.know(0)
    assert places.take(2, "a") is None
    assert places.take(3, "a") == (RejectReason.ADDRESS, "there are 3 from its address already")
    assert places.take(3, "b") is None
    assert places.take(4, "c") == (RejectReason.FULL, "there are 4 already")


@pytest.mark.parametrize(
    ("peername", "source"),
    [
        (("10.0.0.7", 4000), "10.0.0.7"),
        (("::ffff:10.0.0.7", 4000, 0, 0), "10.0.0.7"),
        (("2001:db8:1:2:3::4", 4000, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::5", 4000, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 4000, 0, 2), "fe80::/64"),
        ("", ""),
    ],
)
def test_a_host_is_one_source_whichever_of_its_addresses_it_uses(
    peername: object, source: str
) -> None:
    assert source_of(peername) == source


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("connections_max", 0),
        ("connections_per_address_max", -1),
        ("pending_handshakes_max", 0),
        ("questions_per_client_max", 0),
        ("handshake_s_max", 0.0),
        ("slow_s_max", 3601.0),
    ],
)
def test_limits_with_which_nobody_could_be_served_are_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidSetting, match="give a"):
        ClientLimits(**{name: value})  # type: ignore[arg-type]
