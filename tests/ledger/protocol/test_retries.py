"""What is put off comes back in order, at its time, and only so often."""

from dataclasses import dataclass

from ledger.protocol.common import Retries


@dataclass(frozen=True)
class Ask:
    index: int


@dataclass(frozen=True)
class Tell:
    index: int


def test_what_was_put_off_comes_back_in_that_order_once_its_pause_is_over() -> None:
    retries = Retries[Ask](0.5)
    retries.put_off(Ask(1), 0.0)
    retries.put_off(Ask(0), 0.1)
    retries.put_off(Ask(2), 1.0)
    assert retries.deadline() == 0.5
    assert retries.due(0.4) == []
    assert retries.due(0.7) == [Ask(1), Ask(0)]
    assert retries.deadline() == 1.5


def test_tries_are_counted_for_each_bookie_and_each_kind_of_request() -> None:
    retries = Retries[Ask | Tell](0.5)
    assert retries.try_again(Ask(0), 0.0, tries_max=2)
    assert not retries.try_again(Ask(0), 0.0, tries_max=2)
    assert retries.try_again(Ask(1), 0.0, tries_max=2)
    assert retries.try_again(Tell(0), 0.0, tries_max=2)
    retries.succeeded(Ask, 0)
    assert retries.try_again(Ask(0), 0.0, tries_max=2)


def test_one_kind_or_all_that_waits_can_be_forgotten() -> None:
    retries = Retries[Ask | Tell](0.5)
    for what in (Ask(0), Tell(0), Ask(1), Tell(1)):
        retries.put_off(what, 0.0)
    retries.forget(Ask)
    assert retries.due(0.5) == [Tell(0), Tell(1)]
    retries.put_off(Tell(0), 0.5)
    retries.forget()
    assert retries.deadline() is None
