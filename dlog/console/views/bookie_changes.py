"""What orders to a bookie will do. Pure."""

from typing import Final

from dlog.console.cluster_state import ClusterSeen
from dlog.console.views.confirmation import Asked
from dlog.console.wording import count, size
from dlog.health.repair import RepairFacts
from dlog.settings import LogSettings
from ledger.values import counted
from ledger.wire import bookie_pb2 as pb

ENSEMBLE_USUAL: Final = LogSettings().quorum.ensemble


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
