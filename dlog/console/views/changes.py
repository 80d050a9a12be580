"""Changes that are asked about, are under way or were written down. Pure.

What somebody is asked says what the change will do, in numbers, before it is made: orders to a
bookie, and changes of a log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, Self

from dlog.changes.change import Change, ChangeOutcome
from dlog.console.cluster_state import ClusterSeen, LogLook
from dlog.console.wording import LIMITS, NO_LIMIT, NOT_ENCRYPTED, count, moment, setting, size
from dlog.errors import InvalidSettings
from dlog.health.repair import RepairFacts
from dlog.manifest import Manifest
from dlog.protocol.consumer_steps import ConsumerState
from dlog.protocol.retention import TrimPlan, plan_trim
from dlog.settings import LogSettings, parse_settings, settings_facts
from ledger.values import counted
from ledger.wire import bookie_pb2 as pb

LOSSES_MAX: Final = 50
"""Consumers that are named."""
Consumers = Sequence[tuple[str, ConsumerState]]
ENSEMBLE_USUAL: Final = LogSettings().quorum.ensemble
SET: Final = "set."
"""What names of settings begin with in a form."""


@dataclass(frozen=True, slots=True)
class Field:
    """One line to be filled in before anything can be said."""

    name: str
    label: str
    value: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Loss:
    consumer: str
    records: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    title: str
    button: str
    facts: Sequence[tuple[str, str]] = ()
    says: Sequence[str] = ()
    """Sentences: what follows from it."""
    losses: Sequence[Loss] = ()
    """Consumers that lose records which they have not processed, the worst first."""
    losses_left_out: int = 0
    fields: Sequence[Field] = ()
    fixed: Mapping[str, str] = field(default_factory=dict)
    """What is sent with the confirmation: what was shown, and nothing newer."""
    ready: bool = True
    """False: the fields are to be filled in first, or there is nothing to be done."""

    def with_losses(self, consumers: Consumers, *, first: int, trim: int) -> Self:
        """Add what *consumers* lose of the records from *first* up to *trim*."""
        found = [
            (name, lost)
            for name, state in consumers
            if (lost := trim - max(first, state.position)) > 0
        ]
        found.sort(key=lambda each: -each[1])
        return replace(
            self,
            losses=[Loss(name, count(lost)) for name, lost in found[:LOSSES_MAX]],
            losses_left_out=max(0, len(found) - LOSSES_MAX),
        )


def collection(bookie: str, seen: ClusterSeen) -> Asked:
    status = _status(bookie, seen)
    facts, alarms = [], list[str]()
    if status is not None:
        found = status.collector
        facts = [
            ("wait for an operator's word", counted(found.waiting, "ledger")),
            ("copies that no ledger counts on", counted(found.surplus, "ledger")),
        ]
        alarms = [f"{each.kind}: {each.reason}" for each in found.alarms]
    return Asked(
        title=f"Collect the garbage of {bookie}",
        button="Collect",
        facts=[*_holding(status), *facts],
        says=[
            "What belongs to deleted ledgers is removed now, not in the next run; those that wait "
            "for an operator's word stay. To stop waiting does not stop the bookie.",
            *alarms,
        ],
    )


def compaction(bookie: str, seen: ClusterSeen) -> Asked:
    status = _status(bookie, seen)
    logs = [
        log
        for each in ([] if status is None else status.ledger_directories)
        for log in each.logs
        if log.state != "writing"
    ]
    live, whole = sum(log.live_bytes for log in logs), sum(log.bytes for log in logs)
    return Asked(
        title=f"Compact {bookie}",
        button="Compact",
        facts=[
            *_holding(status),
            ("entry logs", count(len(logs))),
            ("live in them", f"{size(live)} of {size(whole)}"),
        ],
        says=[
            f"Entry logs of which little is live are rewritten, which frees {size(whole - live)} "
            "at most, at the rate that the bookie is configured for. To stop waiting does not stop "
            "it."
        ],
    )


def switching(bookie: str, seen: ClusterSeen, *, read_only: bool) -> Asked:
    writable = {name for name, state in seen.states.items() if state == "writable"}
    left = len(writable - {bookie} if read_only else writable | {bookie})
    says = ["It gets new entries again, unless something else keeps it read-only."]
    if read_only:
        says = [
            "It gets no new entries, even after restarts; it serves reads, fences and recovery. "
            "Writers change to others."
        ]
    if read_only and left < ENSEMBLE_USUAL:
        says.append(
            f"Then {counted(left, 'bookie')} can be written to: logs that want {ENSEMBLE_USUAL}, "
            "as they do by default, begin segments with fewer copies, or wait."
        )
    return Asked(
        title=f"Make {bookie} {'read-only' if read_only else 'writable'}",
        button="Make it read-only" if read_only else "Make it writable",
        facts=[
            *_holding(_status(bookie, seen)),
            ("writable bookies", f"{len(writable)} → {left}"),
        ],
        says=says,
        fixed={"switch": "on" if read_only else "off"},
    )


def decommissioning(bookie: str, seen: ClusterSeen) -> Asked:
    repair = seen.facts("repair")
    says = [
        "It is made read-only, and all that it holds is copied to others by the processes of "
        "repair; it serves reads meanwhile. Once nothing names it, stop it and do this once more: "
        "then its name is retired.",
        "To stop waiting, or to stop this console, leaves it announced: repair goes on.",
    ]
    if isinstance(repair, RepairFacts) and not (repair.workers and repair.enabled):
        says.append("No process of repair is at work: nothing is copied until one is.")
    others = sum(state == "writable" for name, state in seen.states.items() if name != bookie)
    return Asked(
        title=f"Decommission {bookie}",
        button="Decommission",
        facts=[*_holding(_status(bookie, seen)), ("other writable bookies", count(others))],
        says=says,
    )


def keeping(bookie: str, seen: ClusterSeen) -> Asked:
    return Asked(
        title=f"Keep {bookie}",
        button="Keep it",
        facts=_holding(_status(bookie, seen)),
        says=["It is not emptied any more. It stays read-only until it is made writable."],
    )


def _status(bookie: str, seen: ClusterSeen) -> pb.StatusReply | None:
    return next((each.status for each in seen.servers if each.bookie == bookie), None)


def _holding(status: pb.StatusReply | None) -> list[tuple[str, str]]:
    if status is None:
        return [("ledgers", "not known: it does not answer")]
    stored = sum(log.bytes for each in status.ledger_directories for log in each.logs)
    return [("ledgers", count(status.ledgers)), ("in entry logs", size(stored))]


def truncation(
    log: str, look: LogLook, text: str, shown: tuple[TrimPlan, Consumers] | None
) -> Asked:
    """*shown*: what goes, and who reads the log; None: it was not said yet what is to stay."""
    line = Field("before", "First record to keep", text, "offset, 3:17:0, txid:5, time:2h")
    asked = Asked(title=f"Truncate {log}", button="Truncate", fields=[line], ready=False)
    if shown is None:
        return replace(asked, facts=_standing(look))
    plan, consumers = shown
    says = ["Readers that stand below it get an error, and go on at the first record that is kept."]
    if plan.inside is not None:
        says.append(
            f"The cut is inside segment {plan.inside.number}: its ledger {plan.inside.ledger_id} "
            "stays until all of it can go."
        )
    return replace(
        asked,
        facts=[
            ("records that go", count(plan.records)),
            ("bytes freed", f"{size(plan.bytes)} in {counted(len(plan.segments), 'segment')}"),
            ("first offset", f"{count(plan.first_offset)} → {count(plan.trim_offset)}"),
            ("ledgers that go", count(len(plan.ledgers))),
        ],
        says=says,
        fixed={"before": str(plan.trim_offset), "incarnation": plan.incarnation},
        ready=plan.records > 0 or bool(plan.ledgers),
    ).with_losses(consumers, first=plan.first_offset, trim=plan.trim_offset)


def sealing(log: str, look: LogLook, manifest: Manifest, consumers: Consumers) -> Asked:
    leader = f"{look.leader} leads it, and loses it." if look.leader else "Nobody leads it."
    behind = sum(bool(look.lag(state)) for _, state in consumers)
    return Asked(
        title=f"Seal {log}",
        button="Seal for good",
        facts=[*_standing(look), ("consumers with records left to read", count(behind))],
        says=[
            "Nobody can append to it any more, and there is no way back.",
            f"{leader} Appends in flight end with an unknown outcome; what was acknowledged stays.",
            "All of it stays readable, and readers that follow it end.",
        ],
        fixed={"incarnation": manifest.incarnation},
        ready=not manifest.sealed,
    )


def deletion(log: str, look: LogLook, manifest: Manifest, consumers: Consumers) -> Asked:
    end = look.next_offset
    says = ["All of its records go, for good; its writer and its readers fail."]
    if end is None:
        says.append("Bookies are away, so where it ends is not known: more may go than is said.")
    return Asked(
        title=f"Delete {log}",
        button="Delete for good",
        facts=[
            ("records that go", count(look.records)),
            ("bytes freed", size(look.bytes)),
            ("ledgers that go", count(len(manifest.segments) + len(manifest.deleting))),
            ("consumers that go", count(len(consumers))),
        ],
        says=says,
        fixed={"incarnation": manifest.incarnation},
    ).with_losses(
        consumers, first=manifest.first_offset, trim=manifest.sealed_end if end is None else end
    )


def changed_settings(given: Mapping[str, str], present: LogSettings) -> dict[str, str]:
    """Return those settings in the form *given* that are not as they are *present*, as text.

    Raises `InvalidSettings` for a name that does not exist."""
    facts = _shown_settings(present)
    found = {}
    for key, filled in given.items():
        if not key.startswith(SET):
            continue
        name = key.removeprefix(SET)
        if name not in facts:
            raise InvalidSettings(name[:100], "...", "there is no such setting")
        text = filled.strip()
        if text == facts[name]:
            continue
        found[name] = "0" if name in LIMITS and text in ("", NO_LIMIT) else text
    return found


def settings_change(
    log: str, manifest: Manifest, changes: Mapping[str, str], consumers: Consumers, *, now_ms: int
) -> Asked:
    """Raises `InvalidSettings`, `InvalidQuorum`."""
    before = _shown_settings(manifest.settings)
    asked = Asked(
        title=f"Settings of {log}",
        button="Change",
        fields=[
            Field(SET + name, name, changes.get(name, value), _hint(name))
            for name, value in before.items()
        ],
        ready=False,
    )
    if not changes:
        return asked
    settings = parse_settings(changes, manifest.settings)
    after = _shown_settings(settings)
    facts = [
        (name, f"{before[name] or NOT_ENCRYPTED} → {after[name] or NOT_ENCRYPTED}")
        for name in before
        if before[name] != after[name]
    ]
    says = [
        "Retention and degraded writes count at once, a codec and a key from the next segment on, "
        "everything else from the next time on that the log is opened for writing."
    ]
    processed = min((state.position for _, state in consumers), default=manifest.sealed_end)
    trim = replace(manifest, settings=settings).retained_from(now_ms, processed=processed)
    goes = plan_trim(log, manifest, trim)
    if goes.records:
        says.append(
            f"Retention then removes {counted(goes.records, 'record')}, {size(goes.bytes)}, in its "
            "next round."
        )
    return replace(
        asked,
        facts=facts,
        says=says,
        fixed={
            "incarnation": manifest.incarnation,
            **{SET + name: text for name, text in changes.items()},
        },
        ready=bool(facts),
    ).with_losses(consumers, first=goes.first_offset, trim=goes.trim_offset)


def verification(log: str, look: LogLook, manifest: Manifest) -> Asked:
    copies = manifest.settings.quorum.write
    read = None if look.bytes is None else look.bytes * copies
    return Asked(
        title=f"Verify {log}, and repair it",
        button="Verify and repair",
        facts=[*_standing(look), ("to be read", f"{size(read)}, of {counted(copies, 'copy')}")],
        says=[
            "Every entry is read from every bookie that should have it; no writer is disturbed.",
            "Ledgers with copies that are missing or damaged are handed to repair; copies that "
            "differ and are each whole are left for you to decide.",
        ],
        fixed={"incarnation": manifest.incarnation},
    )


def _standing(look: LogLook) -> list[tuple[str, str]]:
    return [
        ("records", count(look.records)),
        ("size", size(look.bytes)),
        ("first offset", count(look.first_offset)),
        ("end", count(look.next_offset)),
    ]


def _shown_settings(settings: LogSettings) -> dict[str, str]:
    return {name: setting(name, value) for name, value in settings_facts(settings).items()}


def _hint(name: str) -> str:
    """Return what an empty field means."""
    if name in LIMITS:
        return NO_LIMIT
    return NOT_ENCRYPTED if name == "encrypt_with" else ""


class Working(Protocol):
    """A change that was ordered here."""

    number: str
    command: str
    subject: str
    begun_ms: int
    outcome: ChangeOutcome
    ended_ms: int | None
    said: str
    permille: int | None
    warnings: list[str]

    @property
    def arguments(self) -> Mapping[str, object]: ...

    @property
    def running(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class WorkRow:
    number: str
    what: str
    subject: str
    at: str
    outcome: str
    tone: str
    """note, good or wrong."""
    said: str
    permille: int | None
    warnings: Sequence[str]
    running: bool


@dataclass(frozen=True, slots=True)
class ChangeRow:
    at: str
    who: str
    place: str
    what: str
    outcome: str


def work_row(work: Working) -> WorkRow:
    tones = {
        ChangeOutcome.DONE: "good",
        ChangeOutcome.BEGUN: "note",
        ChangeOutcome.INTERRUPTED: "note",
    }
    return WorkRow(
        number=work.number,
        what=_what(work.command, work.arguments),
        subject=work.subject,
        at=moment(work.begun_ms),
        outcome="under way" if work.running else str(work.outcome),
        tone=tones.get(work.outcome, "wrong"),
        said=work.said,
        permille=work.permille if work.running else None,
        warnings=tuple(work.warnings),
        running=work.running,
    )


def change_row(change: Change) -> ChangeRow:
    outcome = f"{change.outcome}: {change.error}" if change.error else str(change.outcome)
    what = _what(change.command, change.arguments)
    return ChangeRow(moment(change.begun_ms), change.who, change.place, what, outcome)


def _what(command: str, arguments: Mapping[str, object]) -> str:
    given = (
        f"{name}={','.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in arguments.items()
    )
    return " ".join([command, *given])
