"""Changes of a manifest by compare-and-swap, each safe to repeat.

An edit is a function of the manifest that is stored now. It returns the manifest to write,
the same one if nothing is left to do, or raises if it must not be done any more. So the
driver needs one loop for all of them: read, apply, compare-and-swap; after a conflict *or a
lost reply* begin again. An edit whose first attempt did arrive finds itself done.

Story of why a lost reply is safe: (A) the swap from version v to v+1 gets no answer; (B) the
manifest is read again. If it is still at v, the swap may yet arrive, but only until
somebody, this loop included, writes v+1; whichever is first wins and the other one fails.

Story of why edits name an incarnation or a ledger: a log was deleted and re-created while
its writer slept. What the writer knows of segments and offsets fits the new log as well as the
old one, and is about other records.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dlog.errors import InvalidSettings, LogSealed, LostOwnership, NoSuchLog, TxidOutOfOrder
from dlog.manifest import LocalCopy, Location, Manifest, Sealed, StoredObject
from dlog.position import NO_TXID
from dlog.receipts import Receipt
from dlog.settings import LogSettings
from ledger.ids import LedgerId

Edit = Callable[[Manifest], Manifest]


@dataclass(frozen=True, slots=True)
class Staged:
    """A CLOSED ledger that is part of no log: it was made for a unit of a sink of *epoch*."""

    ledger_id: LedgerId
    epoch: int
    sealed: Sealed


def check_living(manifest: Manifest, log: str) -> None:
    """Raise `NoSuchLog` if *log* is being deleted."""
    if manifest.dropped:
        raise NoSuchLog(log, "it is being deleted")


def check_writable(manifest: Manifest, log: str) -> None:
    """Raise `NoSuchLog` or `LogSealed` if nobody may write *log* any more."""
    check_living(manifest, log)
    if manifest.sealed:
        raise LogSealed(log)


def check_incarnation(manifest: Manifest, log: str, incarnation: str) -> None:
    """Raise `NoSuchLog` if *manifest* is that of another log with the same name."""
    if manifest.incarnation != incarnation:
        raise NoSuchLog(log, "it was deleted, and another one has its name")


def add_segment(
    log: str,
    *,
    incarnation: str,
    own_segment: int,
    number: int,
    ledger_id: LedgerId,
    now_ms: int,
) -> Edit:
    """Append segment *number* after *own_segment*, the one its writer writes now.

    Raises `LostOwnership` if another writer's segment is the last one, `NoSuchLog`,
    `ManifestTooLarge`."""

    def edit(manifest: Manifest) -> Manifest:
        check_incarnation(manifest, log, incarnation)
        last = manifest.last
        if last is not None and last.number == number and last.ledger_id == ledger_id:
            return manifest
        if last is None or last.number != own_segment or manifest.next_segment != number:
            raise LostOwnership(log)
        check_writable(manifest, log)
        manifest.check_room(log)
        return manifest.with_segment(number, ledger_id, now_ms)

    return edit


def adopt(
    log: str,
    *,
    incarnation: str,
    epoch: int,
    receipt: Receipt,
    staged: Sequence[Staged],
    now_ms: int,
) -> Edit:
    """Append CLOSED ledgers as segments, the unit of *receipt*.

    Nothing is left to do if that unit was committed before. Nothing can be done while a segment is
    open, which then has to be recovered first: the log's receipts tell. A ledger that was staged
    in another epoch is never taken: it may be deleted by now (`dlog.protocol.orphans`).

    Raises `LostOwnership` if somebody took the log over since *epoch*, `LogSealed`,
    `TxidOutOfOrder`, `NoSuchLog`, `ManifestTooLarge`."""

    def edit(manifest: Manifest) -> Manifest:
        check_incarnation(manifest, log, incarnation)
        if manifest.receipts.has(receipt):
            return manifest
        check_writable(manifest, log)
        if manifest.epoch != epoch or any(each.epoch != epoch for each in staged):
            raise LostOwnership(log, taken_by(manifest.owner))
        if any(segment.sealed is None for segment in manifest.segments):
            return manifest
        manifest.check_room(log)
        last_txid = manifest.sealed_last_txid
        for each in staged:
            if NO_TXID < each.sealed.first_txid < last_txid:
                raise TxidOutOfOrder(log, each.sealed.first_txid, last_txid)
            if each.sealed.last_txid < last_txid:
                raise LostOwnership(log, "txids were appended after the unit was staged")
            last_txid = each.sealed.last_txid
        ledgers = [(each.ledger_id, each.sealed) for each in staged]
        return manifest.with_adopted(ledgers, now_ms, receipt)

    return edit


def taken_by(owner: str) -> str:
    return f"{owner or 'another process'} took it over"


def taken_by_sibling(owner: str, process: str) -> str:
    """Return what to tell *process* if *owner*, also a ``host:pid``, names its machine; or "".

    Names prove nothing, as two machines may have one: so it says by what it knows."""
    host, _, pid = owner.rpartition(":")
    own_host, _, own_pid = process.rpartition(":")
    if not host or host != own_host or not pid.isdecimal():
        return ""
    if pid == own_pid:
        return (
            f"{owner} opened it, which is the name of this process too: if it did so once more, "
            "open it once and share it"
        )
    return (
        f"{owner} opened it, by its name on this machine: two workers of one application? See "
        "web applications (docs/web.md): one of them should write"
    )


def seal_segment(
    log: str, number: int, ledger_id: LedgerId, sealed: Sealed, *, now_ms: int
) -> Edit:
    """Record the end of segment *number*, whose ledger is CLOSED, and apply the retention.

    Nothing is left to do if it is sealed, was trimmed away with its log, or if *ledger_id*
    never became this segment: another writer's did, and this is not where that ends."""

    def edit(manifest: Manifest) -> Manifest:
        segment = manifest.find(number)
        if segment is None or segment.ledger_id != ledger_id or segment.sealed is not None:
            return manifest
        if any(s.sealed is None and s.number < number for s in manifest.segments):
            raise LostOwnership(log, "segments before its own are not sealed")
        manifest = manifest.with_sealed(number, sealed)
        return manifest.trimmed(manifest.retained_from(now_ms))

    return edit


def trim(log: str, before: int, *, incarnation: str) -> Edit:
    """Move the trim point to *before* at least. Requires that offset to be committed.

    Raises `NoSuchLog`."""

    def edit(manifest: Manifest) -> Manifest:
        check_incarnation(manifest, log, incarnation)
        if manifest.dropped:
            raise NoSuchLog(log, "it is being deleted")
        return manifest.trimmed(before)

    return edit


def end_log(log: str, *, incarnation: str, ends: Mapping[int, Sealed]) -> Edit:
    """End *log* for good. *ends*: what its open segments hold, whose ledgers are CLOSED.

    Changes nothing if a segment is open that *ends* does not know: somebody took the log
    over, and must be fenced first. A number is never used twice, so it names its ledger."""

    def edit(manifest: Manifest) -> Manifest:
        check_incarnation(manifest, log, incarnation)
        check_living(manifest, log)
        unsealed = [segment.number for segment in manifest.segments if segment.sealed is None]
        if manifest.sealed or any(number not in ends for number in unsealed):
            return manifest
        for number in unsealed:
            manifest = manifest.with_sealed(number, ends[number])
        return replace(manifest, sealed=True)

    return edit


def change_settings(
    log: str, *, incarnation: str, change: Callable[[LogSettings], LogSettings]
) -> Edit:
    """Replace the settings by what *change* makes of them. Raises `NoSuchLog`, what it raises, and
    `InvalidSettings` if it takes away the storage of objects that there are."""

    def edit(manifest: Manifest) -> Manifest:
        check_incarnation(manifest, log, incarnation)
        check_living(manifest, log)
        settings = change(manifest.settings)
        if settings.archive != manifest.settings.archive and manifest.has_objects:
            reason = f"log {log!r} has objects in {manifest.settings.archive}, where they stay"
            raise InvalidSettings("archive", settings.archive, reason)
        owners = manifest.owners if settings.archive == manifest.settings.archive else ()
        return replace(manifest, settings=settings, owners=owners)

    return edit


def retain(log: str, *, seen: Manifest, now_ms: int, processed: int | None) -> Edit:
    """Apply the retention that is set now; *processed* as in `Manifest.retained_from`.

    *seen* was read before the consumers were: if the log got another name since, they had gone
    with it, and the next look finds them. Nothing is left to do if the log is being deleted.
    Raises `NoSuchLog`."""

    def edit(manifest: Manifest) -> Manifest:
        check_incarnation(manifest, log, seen.incarnation)
        moved = manifest.settings.retention_waits_for_consumers and manifest.life != seen.life
        if manifest.dropped or moved:
            return manifest
        return manifest.trimmed(manifest.retained_from(now_ms, processed=processed))

    return edit


def add_objects(log: str, parts: Mapping[int, StoredObject], *, incarnation: str) -> Edit:
    """Record that segments are in an object as well, which holds all of them for certain: by their
    numbers.

    Nothing is done for those that were trimmed, or are in another object: they are then never
    listed with this one, by nobody. Raises `NoSuchLog`, `ManifestTooLarge`."""

    def edit(manifest: Manifest) -> Manifest:
        check_incarnation(manifest, log, incarnation)
        check_living(manifest, log)
        free = {s.number for s in manifest.segments if s.location.object is None}
        if free.isdisjoint(parts):
            return manifest
        manifest.check_room(log)
        return manifest.with_objects({n: parts[n] for n in parts if n in free})

    return edit


def begin_copies(log: str, *, incarnation: str) -> Edit:
    """Begin a round of local copies: from now on no copy of an earlier round is listed. Raises
    `NoSuchLog`."""

    def edit(manifest: Manifest) -> Manifest:
        check_incarnation(manifest, log, incarnation)
        check_living(manifest, log)
        return replace(manifest, copy_round=manifest.copy_round + 1)

    return edit


def end_copies(log: str, copy_round: int, *, incarnation: str) -> Edit:
    """Let nobody list a copy of *copy_round* any more. Raises `NoSuchLog`."""

    def edit(manifest: Manifest) -> Manifest:
        check_incarnation(manifest, log, incarnation)
        if manifest.copy_round != copy_round:
            return manifest
        return replace(manifest, copy_round=copy_round + 1)

    return edit


def add_copy(log: str, copy: LocalCopy, *, incarnation: str, copy_round: int) -> Edit:
    """List *copy*, which was verified.

    Nothing is done if its segment was trimmed or has another one, or in a later round: it is then
    never listed. Raises `NoSuchLog`, `ManifestTooLarge`."""

    def edit(manifest: Manifest) -> Manifest:
        check_incarnation(manifest, log, incarnation)
        check_living(manifest, log)
        taken = any(each.number == copy.number for each in manifest.copies)
        gone = copy.end_offset <= manifest.trim_offset
        if taken or gone or manifest.copy_round != copy_round:
            return manifest
        manifest.check_room(log)
        return manifest.with_copies((*manifest.copies, copy))

    return edit


def keep_copies(log: str, numbers: Collection[int], until_ms: int, *, incarnation: str) -> Edit:
    """Let the copies of segments *numbers* stay until *until_ms*. Raises `NoSuchLog`."""

    def edit(manifest: Manifest) -> Manifest:
        check_incarnation(manifest, log, incarnation)
        check_living(manifest, log)
        copies = tuple(
            replace(copy, until_ms=until_ms) if copy.number in numbers else copy
            for copy in manifest.copies
        )
        return replace(manifest, copies=copies)

    return edit


def drop_copies(log: str, now_ms: int, *, incarnation: str) -> Edit:
    """Let the copies go whose time is over; their ledgers are listed for deletion. Raises
    `NoSuchLog`."""

    def edit(manifest: Manifest) -> Manifest:
        check_incarnation(manifest, log, incarnation)
        check_living(manifest, log)
        return manifest.with_copies(copy for copy in manifest.copies if copy.until_ms > now_ms)

    return edit


def leave_bookies(log: str, number: int, stored: StoredObject, *, incarnation: str) -> Edit:
    """Let segment *number* be in *stored* alone, which was just verified; list its ledger for
    deletion. Nothing is left to do unless it is in both. Raises `NoSuchLog`."""

    def edit(manifest: Manifest) -> Manifest:
        check_incarnation(manifest, log, incarnation)
        check_living(manifest, log)
        segment = manifest.find(number)
        if segment is None or segment.location != Location(object=stored):
            return manifest
        return manifest.without_ledger(number)

    return edit


def forget_deleted(ledgers: Iterable[LedgerId], objects: Iterable[StoredObject] = ()) -> Edit:
    """Take *ledgers* and *objects*, which do not exist any more, off the lists."""
    gone, gone_objects = tuple(ledgers), tuple(objects)

    def edit(manifest: Manifest) -> Manifest:
        return manifest.deleted(gone, gone_objects)

    return edit


def drop_log(log: str, *, incarnation: str) -> Edit:
    """Begin the deletion of a log: from now on nobody can open it or add a segment.

    Raises `NoSuchLog` if it is gone: whatever has its name by now, nobody asked to delete."""

    def edit(manifest: Manifest) -> Manifest:
        check_incarnation(manifest, log, incarnation)
        return manifest if manifest.dropped else manifest.dropping()

    return edit
