"""Which client takes what is due to it too slowly."""

from bookie.server.admission import TAKEN_BYTES, ClientPace


def test_a_client_to_which_nothing_is_due_is_not_waited_for() -> None:
    pace = ClientPace(0.0)
    for now in (10.0, 20.0):
        assert pace.waits_s(now, sent_bytes=5 * TAKEN_BYTES, unsent_bytes=0) == 0


def test_a_byte_now_and_then_does_not_count() -> None:
    pace = ClientPace(0.0)
    for now in range(100):
        waits_s = pace.waits_s(now, sent_bytes=9 * TAKEN_BYTES, unsent_bytes=9 * TAKEN_BYTES - now)
        assert waits_s == now


def test_who_takes_enough_is_waited_for_anew() -> None:
    pace = ClientPace(0.0)
    for step in range(1, 9):
        taken_bytes = (step - 1) * TAKEN_BYTES
        waits_s = pace.waits_s(
            20.0 * step, sent_bytes=9 * TAKEN_BYTES, unsent_bytes=9 * TAKEN_BYTES - taken_bytes
        )
        assert waits_s == 0


def test_of_little_all_has_to_be_taken() -> None:
    pace = ClientPace(0.0)
    assert pace.waits_s(1.0, sent_bytes=100, unsent_bytes=100) == 0
    assert pace.waits_s(2.0, sent_bytes=100, unsent_bytes=1) == 1
    assert pace.waits_s(3.0, sent_bytes=200, unsent_bytes=100) == 0, "the 100 of before are taken"
