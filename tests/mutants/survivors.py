"""Bugs that no quick test notices, each with the reason why that is right.

Found and checked by `python -m tests.mutants`. A bug is named by its file, its function and its
line, so that it is still the same when others come before it; the line alone stands for its
deletion. What the simulators alone would miss does not belong here: it wants a test.
"""

from typing import Final

JUDGED: Final[dict[tuple[str, str, str], str]] = {}


def _judged(why: str, file: str, function: str, *statements: str) -> None:
    for statement in statements:
        assert (file, function, statement) not in JUDGED, f"{statement} is judged twice"
        JUDGED[file, function, statement] = why


_UNSEEN: Final = "a value of before the first use: each is set before it is read"
_ASSERTS: Final = "holds assertions alone"
_NEVER: Final = "for the type checker: it does not come to this"
_QUICKER: Final = "saves work; without it the same comes out"
_NAMES: Final = "names the machine for whoever looks at it in a debugger"

_ACKS = "ledger/protocol/acks.py"
_judged(
    _QUICKER,
    *(_ACKS, "AckTracker.wants"),
    "if not self.is_striped and first <= last:",
    "return True",
)

_ABSENCES = "ledger/protocol/ensemble_change.py"
_judged(
    "an index is taken out of what is back when its writer goes on without it again",
    *(_ABSENCES, "Absences.began_fragment"),
    "self._back.clear()",
)

_RECOVERY = "ledger/protocol/recovery.py"
_judged(_NAMES, _RECOVERY, "Recovery.__init__", "self.ledger_id = ledger_id")
_judged(_UNSEEN, _RECOVERY, "Recovery.__init__", "self._fencing: Fencing | None = None")
_judged(_ASSERTS, _RECOVERY, "Recovery.step", "self.check()")
_judged(_ASSERTS, _RECOVERY, "Recovery.check", "if self.phase is RecoveryPhase.CLOSING:")
_judged(_NEVER, _RECOVERY, "Recovery._metadata_written", "return []")
_judged(_NEVER, _RECOVERY, "Recovery._metadata_read", "return []")
_judged(_NEVER, _RECOVERY, "Recovery._read_on", "assert_never(event)")

_WRITE_BACK = "ledger/protocol/recovery_phases.py"
_judged(
    "a copy that is sent twice, to the bookie that is there now, does no harm",
    *(_WRITE_BACK, "WriteBacks.send_again"),
    "if not self._acks.is_current(sent.index, sent.generation):",
    "return []",
)
_judged(_NEVER, _WRITE_BACK, "WriteBacks.chosen", "if not self._choosing:", "return []")

_REPAIR = "bookie/autorecovery/protocol/repair.py"
_judged(
    _UNSEEN,
    *(_REPAIR, "_Repair.__init__"),
    "self._mark = UnderreplicatedLedger(())",
    "self._now_ms = 0",
    "self._new_round()",
)
_judged(_UNSEEN, _REPAIR, "_Repair._new_round", 'self._wait_why = ""')
_judged(
    _QUICKER,
    *(_REPAIR, "_Repair._mend"),
    "if work.is_empty:",
    "return (yield from self._swap(work, tuple(work.targets)))",
)
_judged(
    "the answer that led here has said so already",
    *(_REPAIR, "_Repair._swap"),
    "self._unseen = True",
)
_judged(
    "None is as false; and what is tried again is refused again",
    *(_REPAIR, "_Repair._swap"),
    "return False",
)
_judged("None is what comes back anyway", _REPAIR, "_Repair._left", "return None")
_WRITER = "ledger/protocol/writer.py"
_judged(_NAMES, _WRITER, "Writer.__init__", "self.ledger_id = ledger_id")
_judged(_ASSERTS, _WRITER, "Writer.step", "self.check(confirmed_before=confirmed_before)")
_judged(_NEVER, _WRITER, "Writer.step", "assert_never(event)")
_judged(_NEVER, _WRITER, "Writer._refused", "assert_never(event.status)")

_READING = "ledger/protocol/read.py"
_judged(_ASSERTS, _READING, "Reading.step", "self.check(confirmed_before=confirmed_before)")
_judged(_NEVER, _READING, "Reading.step", "assert_never(event)")

_ANSWERS = "ledger/protocol/answers.py"
_judged(_QUICKER, _ANSWERS, "proven_lac", "if not proof:")

_judged(
    "what decided the end decides it again",
    *(_RECOVERY, "Recovery._decide"),
    "if search.end_found:",
    "return effects",
)

_judged(
    "what was written is read again, and is its own",
    *("bookie/identity/lives.py", "report"),
    "return Claim(changed, version)",
)
_judged(
    "no instance, None or empty, is that of a bookie",
    *("bookie/identity/lives.py", "_instance"),
    'return ""',
)
_judged(
    _UNSEEN,
    "bookie/identity/registration.py",
    "Registrar.__init__",
    "self._announced = registration",
)
_judged(
    "a registration that is there is left alone, and again",
    *("bookie/identity/registration.py", "Registrar.start"),
    "break",
)
_judged(
    "saves a try that fails",
    *("bookie/identity/registration.py", "Registrar._stay"),
    "await asyncio.sleep(_RETRY_S_MIN)  # the next session may not be there yet",
)
_judged(
    "what is canceled ends in the next turn, before the store answers",
    *("bookie/identity/registration.py", "Registrar.close"),
    "await asyncio.wait([self._task])",
)
_judged("None is what comes back anyway", "bookie/identity/stamp.py", "_get", "return None")
_judged(
    "a server that lags is asked until it has caught up",
    *("bookie/identity/stamp.py", "_count"),
    "await store.sync(path)",
)
_judged(_QUICKER, "bookie/identity/restore.py", "_end_life", "return")

_AUDITING = "bookie/autorecovery/protocol/audit.py"
_judged(
    _UNSEEN,
    *(_AUDITING, "_Audit.__init__"),
    "self._due: dict[BookieId, Reason] = {}",
    'self._alarm = self._recorded_alarm = ""',
    "self._lost = NO_BOOKIES",
    "self._named: set[BookieId] = set()",
    "self._count_anew()",
)
_judged(
    _QUICKER,
    *(_AUDITING, "_Audit._pass_over"),
    "if not self._due and not self._alarm:  # all are back: the rest is of no interest",
    "return False",
)
_judged("None is as false", _AUDITING, "_lacks", "return False")

_CHECKING = "bookie/autorecovery/protocol/checks.py"
_judged(
    _QUICKER,
    *(_CHECKING, "_too_few"),
    "if len(lacking) <= quorum.write - quorum.ack:",
    "return False",
)


_QUEUEING = "bookie/autorecovery/protocol/repair_queue.py"
_judged(
    _UNSEEN,
    *(_QUEUEING, "Queue.__init__"),
    "self.next_ms: int | None = None",
    "self.deferred = 0",
)
_judged("None is what comes back anyway", _QUEUEING, "Queue.take", "return None")

_REBALANCING = "bookie/autorecovery/protocol/rebalance.py"
_judged(
    "what is not CLOSED weighs nothing",
    *(_REBALANCING, "Rebalancing.choose"),
    "if metadata.state is not LedgerState.CLOSED:",
)
_judged("None is what comes back anyway", _REBALANCING, "Rebalancing.choose", "return None")
_judged("None is what comes back anyway", _REBALANCING, "Rebalancing._target", "return None")

_judged(
    "None is what comes back anyway",
    *("bookie/autorecovery/protocol/repair_plan.py", "CopyRange.next_from"),
    "return None",
)
