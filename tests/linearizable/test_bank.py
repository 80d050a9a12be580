"""Histories of a bank, by hand: both judges agree on what is linearizable, and on what is not."""

from dataclasses import replace
from typing import Final

import pytest

from tests.linearizable.bank import ACCOUNTS, BankHistory, BankState, Effect, Payload, Read
from tests.linearizable.checker import CheckerMissing, build, judge


def deposit(name: str, amount: int) -> Payload:
    return {"op": "deposit", "to": 0, "amount": amount, "id": name}


def balances(*of_first: int) -> list[int]:
    return [*of_first, *[0] * (ACCOUNTS - len(of_first))]


def read(call: float, serial: int, *of_first: int) -> Read:
    return Read("r", call, call + 1, serial, balances(*of_first), call)


PAY: Final[Payload] = {"op": "transfer", "from": 0, "to": 1, "amount": 3, "id": "b:1"}
FIVE: Final = Effect("a", deposit("a:1", 5), 1.0, 2.0, [1, 5])
PAID: Final = Effect("b", PAY, 3.0, 4.0, [2, 1])
UNKNOWN: Final = Effect("b", PAY, 3.0)
BROKE: Final = Effect("c", {**PAY, "from": 1, "to": 0, "amount": 9, "id": "c:1"}, 5.0, 6.0, [3, 0])
AFTER_FIVE: Final = BankState(1, balances(5))
AFTER_PAID: Final = BankState(2, balances(2, 3))
AFTER_UNKNOWN: Final = BankState(2, balances(2, 3), {"b:1": 2})

GOOD: Final = {
    "in order": ([FIVE, PAID], [read(5, 2, 2, 3)], AFTER_PAID),
    "a read meanwhile": ([FIVE, PAID], [read(3.5, 1, 5), read(3.5, 2, 2, 3)], AFTER_PAID),
    "too little money": ([FIVE, PAID, BROKE], [], BankState(3, balances(2, 3))),
    "an unknown outcome that happened": ([FIVE, UNKNOWN], [read(9, 2, 2, 3)], AFTER_UNKNOWN),
    "an unknown outcome that did not": ([FIVE, UNKNOWN], [read(9, 1, 5)], AFTER_FIVE),
    "a refusal": ([FIVE, replace(UNKNOWN, refused=True)], [read(9, 1, 5)], AFTER_FIVE),
}
BAD: Final = {
    "a stale read": ([FIVE, PAID], [read(5, 1, 5)], AFTER_PAID),
    "reads that go back": ([FIVE, UNKNOWN], [read(3, 2, 2, 3), read(5, 1, 5)], AFTER_UNKNOWN),
    "a state that never was": ([FIVE, PAID], [read(5, 2, 2, 4)], AFTER_PAID),
    "money for nothing": ([FIVE, replace(PAID, result=[2, 0])], [], AFTER_PAID),
    "an order against time": (
        [replace(PAID, result=[1, 0]), replace(FIVE, call=0.1, returned=0.2, result=[2, 5])],
        [],
        BankState(2, balances(5)),
    ),
    "two effects": ([replace(FIVE, result=[2, 10])], [read(3, 2, 10)], BankState(2, balances(10))),
}
UNSEEN: Final[dict[str, "History"]] = {
    "a refused command that has an effect": (
        [FIVE, replace(UNKNOWN, refused=True)],
        [],
        AFTER_UNKNOWN,
    ),
    "one effect of two": ([FIVE, replace(FIVE, payload=deposit("a:2", 5))], [], AFTER_FIVE),
    "another end": ([FIVE, PAID], [], AFTER_FIVE),
}
"""What no client can see; `check` compares it with the end."""

History = tuple[list[Effect], list[Read], BankState]


@pytest.mark.parametrize("history", GOOD.values(), ids=GOOD)
def test_a_linearizable_history_of_a_bank_passes(history: History) -> None:
    effects, reads, end = history
    assert BankHistory(effects, reads).check(end) == []


@pytest.mark.parametrize("history", [*BAD.values(), *UNSEEN.values()], ids=[*BAD, *UNSEEN])
def test_what_no_bank_may_answer_is_found(history: History) -> None:
    effects, reads, end = history
    assert BankHistory(effects, reads).check(end)


def test_a_local_read_sees_what_was_answered_until_the_time_that_it_tells() -> None:
    local = replace(read(9, 1, 5), sees=3.5)
    assert BankHistory([FIVE, PAID], [], [local]).check(AFTER_PAID) == []
    (broken,) = BankHistory([FIVE, PAID], [], [replace(local, sees=4.5)]).check(AFTER_PAID)
    assert "stale" in broken


@pytest.mark.integration
@pytest.mark.parametrize("name", [*GOOD, *BAD])
def test_porcupine_judges_a_bank_alike(name: str) -> None:
    try:
        build()
    except CheckerMissing as missing:
        pytest.skip(str(missing))
    effects, reads, end = (GOOD | BAD)[name]
    (verdict,) = judge(BankHistory(effects, reads).lines("bank-by-hand", end))
    assert verdict.linearizable == (name in GOOD), verdict.story
