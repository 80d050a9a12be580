"""What changes of a log will do. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from dlog.console.cluster_state import LogLook
from dlog.console.views.confirmation import Asked, Consumers, Field
from dlog.console.wording import LIMITS, NO_LIMIT, NOT_ENCRYPTED, count, setting, size
from dlog.errors import InvalidSettings
from dlog.manifest import Manifest
from dlog.protocol.retention import TrimPlan, plan_trim
from dlog.settings import LogSettings, parse_settings, settings_facts
from ledger.values import counted

SET: Final = "set."
"""What names of settings begin with in a form."""


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
