"""Every error of the ledger layer; the root of all errors of dlog.

    LogError                       base of everything that dlog raises on purpose
    |- CallerError                 the call was wrong; repeating it unchanged cannot help
    |  |- InvalidValue             a duration, size, count or other value is invalid
    |  |- InvalidUri
    |  |- NoNamespace              no namespace exists there
    |  |- InvalidQuorum            E >= Qw >= Qa >= 1 does not hold, or more than E_MAX
    |  |- EntryTooLarge
    |  |- InvalidPath              not a path of the metadata store, or below an ephemeral node
    |  |- ValueTooLarge            the metadata store cannot hold a value of that size
    |  |- WrongPassword
    |  |- HandleClosed             the handle was closed by its owner
    |  |- MetricsNotServed         the address for metrics cannot be listened on
    |  |- InvalidTls               TLS settings are invalid, or contradict each other
    |  |- CertificateUnusable      a file of TLS is missing, or cannot be used
    |  |- InvalidGrant             a grant matches no identity, or there are too many
    |  |- NoSuchGrant              there is no such grant
    |  |- LevelTooLow              the operation needs a higher level of the cluster
    |  |- SourceInUse              a namespace is copied while no bookie uses it
    |  |- TargetNotEmpty           a namespace is copied only to an empty target
    |  |- LedgerClosed             a ledger that is closed keeps its end
    |  |- EndBelowConfirmed        a ledger is not closed below what is proven to be confirmed
    |  |- EndNotHeld               a ledger is not closed above an entry that nobody holds
    |  |- CannotUpgrade            the level of the cluster cannot rise, and what prevents it
    |  `- TooManyPending           too many bytes await confirmation; wait, then continue
    |- RemoteError                 another process refused, or did not answer
    |  |- MetadataError
    |  |  |- MetadataUnavailable   no answer in time; the outcome of a write is unknown
    |  |  |  `- MetadataFull       ... as the disk of an embedded store is full
    |  |  |- NoSuchNode / NodeExists / NodeNotEmpty / BadVersion
    |  |  |- BookieForgotten       the cluster has no cookie of the bookie (any more)
    |  |  |- MetadataDenied        the store does not know this client, or does not allow it
    |  |  |- LevelTooNew           this program is older than what the cluster may write
    |  |  `- NamespaceMismatch     instance, layout or format of the namespace differs
    |  |- NotEnoughBookies
    |  |- BookieUnavailable        no answer in time, or refused the connection
    |  |- BookieRefused            the bookie answered with an error
    |  |- WrongBookie              another bookie answers where one was expected
    |  |- TransportMismatch        one end accepts only TLS, the other only plain connections
    |  |- AccessDenied             the client lacks a grant for what it requested
    |  |- NoSuchLedger
    |  |- WriterFailed             the writer met an impossible state; recover the ledger
    |  |- KeyDiffers               bookies hold the ledger under another key than its metadata says
    |  |- LedgerFenced             another process recovers or has closed the ledger
    |  |- RecoveryFailed           recovery could not decide; the ledger stays IN_RECOVERY
    |  |  `- ConfirmedEntryMissing  ... because no bookie has an entry that is confirmed
    |  |- EndUncertain             not all bookies reported all that they hold of a ledger
    |  |- BookiesMissing           bookies that the cluster knows are unavailable
    |  |- EntryUnavailable         no replica returned an entry, and some did not answer
    |  `- EntryLost                every replica answered that it cannot return the entry
    `- StorageError                bytes that were read are not the bytes that were written
       |- DamagedEntry
       |- DamagedMetadata
       `- BadMessage              a message of another process is invalid
          `- DamagedMessage       ... because it was damaged in transit

Each class says by two attributes what a caller may do: `retryable` (the same call may
succeed later) and `outcome_unknown` (the operation may or may not have happened). For the adds
in flight when an error ended a writer the outcome is unknown, whatever the error's class.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_NAMES_MAX: Final = 8
_FITTING_VERSIONS: Final = "upgrade the side that runs the older dlog"


class LogError(Exception):
    """Base of all errors raised by dlog on purpose. The message says what to do."""

    retryable: bool = False
    outcome_unknown: bool = False


_Error = TypeVar("_Error", bound=LogError)


def with_unknown_outcome(error: _Error) -> _Error:
    """Return the same error, for operations in flight when it occurred."""
    kind = type(error)
    same = kind.__new__(kind, *error.args)
    same.__dict__.update(error.__dict__)
    same.outcome_unknown = True
    return same


class CallerError(LogError):
    """The call itself was wrong."""


class RemoteError(LogError):
    """Another process refused, failed or did not answer."""


class StorageError(LogError):
    """What is on disk, or came over the wire, is damaged or does not fit."""


class InvalidValue(CallerError, ValueError):
    """A value that is invalid, or out of its range; also a ValueError."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(f"{name}={value!r}: {reason}")
        self.name, self.value, self.reason = name, value, reason


class NoNamespace(CallerError):
    def __init__(self, uri: str, *, local: bool = False) -> None:
        """*local*: it is the default place of a local cluster, and was not named explicitly."""
        place, options, _ = uri.partition("?")
        shown = f"{place}?..." if options else place  # a password may be among them
        if local:
            said = f"there is no local cluster: there is no namespace at {shown}; start one with "
            said += "'dlog up', or name another one by "
            said += "the argument or option uri, DLOG_URI, or the settings"
        else:
            said = f"there is no namespace at {shown}: check the URI (the argument or option uri, "
            said += f"DLOG_URI, or the settings), or create one: dlog init '{shown}'"
        super().__init__(said)
        self.uri = shown


class InvalidUri(CallerError):
    def __init__(self, uri: object, reason: str) -> None:
        super().__init__(
            f"namespace URI {uri!r}: {reason}. "
            "Use file:///directory, zk://host:2181,host:2181/root or memory://name."
        )
        self.uri = uri


class InvalidQuorum(CallerError):
    def __init__(self, ensemble: int, write_quorum: int, ack_quorum: int, reason: str) -> None:
        super().__init__(
            f"E={ensemble}, Qw={write_quorum}, Qa={ack_quorum}: {reason}. "
            "E >= Qw >= Qa >= 1 must hold."
        )
        self.ensemble, self.write_quorum, self.ack_quorum = ensemble, write_quorum, ack_quorum


class EntryTooLarge(CallerError):
    def __init__(self, size_bytes: int, size_bytes_max: int) -> None:
        super().__init__(
            f"entry of {size_bytes} bytes is over the limit of {size_bytes_max}; split it"
        )
        self.size_bytes, self.size_bytes_max = size_bytes, size_bytes_max


class InvalidPath(CallerError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path!r} cannot be the path of a metadata node: {reason}")
        self.path, self.reason = path, reason


class ValueTooLarge(CallerError):
    def __init__(self, path: str, size_bytes: int, size_bytes_max: int) -> None:
        super().__init__(
            f"value of {size_bytes} bytes for node {path} is over the limit of "
            f"{size_bytes_max}; keep less in one node"
        )
        self.path, self.size_bytes, self.size_bytes_max = path, size_bytes, size_bytes_max


class WrongPassword(CallerError):
    def __init__(self, ledger_id: int) -> None:
        super().__init__(
            f"ledger {ledger_id}: the password is not the one it was created with; "
            "open it with that password"
        )
        self.ledger_id = ledger_id


class HandleClosed(CallerError):
    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is closed; open it again to continue")
        self.what = what


class MetricsNotServed(CallerError):
    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(
            f"metrics cannot be served on {host}:{port}: {reason}; give another --metrics-port "
            "(DLOG_METRICS) or --metrics-host"
        )
        self.host, self.port, self.reason = host, port, reason


class InvalidTls(CallerError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason} (see docs/security.md)")
        self.reason = reason


class CertificateUnusable(CallerError):
    """Names the file, never its contents."""

    def __init__(self, path: str, reason: str, *, retryable: bool = False) -> None:
        """*retryable*: the files do not match; they may be in the middle of a renewal."""
        super().__init__(f"TLS cannot be used: {path}: {reason}")
        self.path, self.reason, self.retryable = path, reason, retryable


class InvalidGrant(CallerError):
    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what!r} cannot be granted: {reason} (see docs/security.md)")
        self.what, self.reason = what, reason


class NoSuchGrant(CallerError):
    def __init__(self, grant: str) -> None:
        super().__init__(f"there is no grant that {grant}; 'dlog access list' shows all grants")
        self.grant = grant


class InvalidQuota(CallerError):
    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name!r} cannot have this quota: {reason} (see docs/security.md)")
        self.name, self.reason = name, reason


class NoSuchQuota(CallerError):
    def __init__(self, quota: str) -> None:
        super().__init__(f"there is no quota of {quota}; 'dlog quota list' shows all quotas")
        self.quota = quota


class TooManyPending(CallerError):
    retryable = True

    def __init__(self, pending_bytes: int, pending_bytes_max: int) -> None:
        super().__init__(
            f"{pending_bytes} bytes await confirmation, at most {pending_bytes_max} may; "
            "wait for some of them, then continue"
        )
        self.pending_bytes, self.pending_bytes_max = pending_bytes, pending_bytes_max


class MetadataError(RemoteError):
    """An error of the metadata store, or of its contents."""


class MetadataUnavailable(MetadataError):
    retryable = True
    outcome_unknown = True

    def __init__(self, uri: str, operation: str, timeout_s: float, reason: str = "") -> None:
        uri = uri.partition("?")[0]  # its options can hold a password
        because = f": {reason}" if reason else ""
        super().__init__(
            f"metadata store {uri} did not answer {operation} within {timeout_s:g} s{because}; "
            "check that it runs and can be reached, then try again"
        )
        self.uri, self.operation, self.timeout_s = uri, operation, timeout_s


class MetadataFull(MetadataUnavailable):
    """The disk of an embedded store is full."""

    def __init__(self, uri: str, operation: str, timeout_s: float) -> None:
        super().__init__(uri, operation, timeout_s)
        self.args = (
            f"metadata store {uri} has no space for {operation}: the disk of its directory is "
            "full; free some space, then try again",
        )


class NoSuchNode(MetadataError):
    def __init__(self, path: str) -> None:
        super().__init__(f"metadata store has no node {path}")
        self.path = path


class NodeExists(MetadataError):
    def __init__(self, path: str) -> None:
        super().__init__(f"metadata store already has a node {path}")
        self.path = path


class NodeNotEmpty(MetadataError):
    def __init__(self, path: str) -> None:
        super().__init__(f"node {path} has children; delete those first")
        self.path = path


class BadVersion(MetadataError):
    """The compare of a compare-and-swap failed: another client wrote first."""

    def __init__(self, path: str, expected: int) -> None:
        super().__init__(f"node {path} is no longer at version {expected}; read it again")
        self.path, self.expected = path, expected


class BookieForgotten(MetadataError):
    """No ledger relies on data of this bookie, and none must begin to."""

    def __init__(self, bookie: str) -> None:
        super().__init__(
            f"the cluster does not know bookie {bookie} (any more): its name is retired, or is "
            "another bookie's, or its cookie was deleted, so it is not registered; start it again "
            "to see which"
        )
        self.bookie = bookie


class MetadataDenied(MetadataError):
    def __init__(
        self,
        uri: str,
        operation: str,
        reason: str,
        advice: str = "check the credentials in the URI and the ACLs of the namespace",
    ) -> None:
        super().__init__(f"metadata store {uri} refuses {operation}: {reason}; {advice}")
        self.uri, self.operation, self.reason = uri, operation, reason


class NamespaceMismatch(MetadataError):
    def __init__(self, found: str, expected: str) -> None:
        super().__init__(
            f"namespace is {found}, expected {expected}; "
            "check the URI, or use the version and settings with which the namespace was created"
        )
        self.found, self.expected = found, expected


class LevelTooNew(MetadataError):
    def __init__(self, level: int, reads: int, needs: str = "") -> None:
        """*needs*: the first release that reads *level*, if that is known."""
        super().__init__(
            f"the cluster is at level {level}, and this program reads levels up to {reads}; "
            f"install dlog {needs or 'of a newer release'}{' or newer' if needs else ''} here"
        )
        self.level, self.reads, self.needs = level, reads, needs


class LevelTooLow(CallerError):
    def __init__(self, what: str, needed: int, level: int) -> None:
        super().__init__(
            f"{what} needs level {needed} of the cluster, which is at level {level}: older "
            "programs could not read it; upgrade readers, writers and bookies, then "
            "'dlog cluster upgrade'"
        )
        self.what, self.needed, self.level = what, needed, level


class CannotUpgrade(CallerError):
    def __init__(self, level: int, wanted: int, obstacles: Sequence[str]) -> None:
        """*obstacles*: a sentence for each reason."""
        shown = "; ".join(obstacles[:_NAMES_MAX])
        if len(obstacles) > _NAMES_MAX:
            shown += f"; and {len(obstacles) - _NAMES_MAX} more"
        super().__init__(
            f"the cluster stays at level {level} and does not rise to level {wanted}: {shown}"
        )
        self.level, self.wanted, self.obstacles = level, wanted, tuple(obstacles)


class NotEnoughBookies(RemoteError):
    retryable = True

    def __init__(
        self,
        needed: int,
        available: Iterable[str],
        *,
        failed: Iterable[str] = (),
        read_only: Mapping[str, str] = NOTHING,
        lost: Iterable[str] = (),
    ) -> None:
        """*failed*: bookies of the ledger that do not accept its entries, though they may be
        registered; *needed* is then how many have to keep each entry. *read_only*: bookies that
        accept no new entries, and why, if known. *lost*: known bookies that do not run."""
        self.needed, self.available, self.failed = needed, tuple(available), tuple(failed)
        self.read_only, self.lost = dict(read_only), tuple(lost)
        found = f"{needed} bookies are needed"
        if self.failed:
            found += f" for each entry, failed: {_names(self.failed)}, others"
        else:
            found += ","
        found += f" available: {_names(self.available)}"
        advice = ["repair those that failed"] if self.failed else []
        if self.read_only:
            shown = [f"{name} ({why})" if why else name for name, why in self.read_only.items()]
            found += f"; read-only: {_names(shown)}"
            advice.append(
                "free disk space or run 'dlog bookie readonly off' ('dlog bookie status' says why)"
            )
        if self.lost:
            found += f"; known and not running: {_names(self.lost)}"
        advice.append(f"start {'these or ' if self.lost else ''}more bookies")
        super().__init__(f"{found}; {', '.join(advice)} or use a smaller ensemble")


def _names(names: Sequence[str]) -> str:
    """Return up to `_NAMES_MAX` of *names*, for a sentence."""
    rest = len(names) - _NAMES_MAX
    return ", ".join(names[:_NAMES_MAX]) + (f" and {rest} more" if rest > 0 else "") or "none"


class BookieUnavailable(RemoteError):
    retryable = True
    outcome_unknown = True

    def __init__(self, bookie: str, reason: str) -> None:
        super().__init__(
            f"bookie {bookie} cannot be reached: {reason}; check that it runs, then try again"
        )
        self.bookie, self.reason = bookie, reason


class BookieRefused(RemoteError):
    retryable = True

    def __init__(self, bookie: str, status: str) -> None:
        super().__init__(f"bookie {bookie} answered {status}")
        self.bookie, self.status = bookie, status


class WrongBookie(RemoteError):
    """Its answers are ignored."""

    retryable = True

    def __init__(self, bookie: str, reason: str) -> None:
        super().__init__(f"a process other than bookie {bookie} answers: {reason}")
        self.bookie, self.reason = bookie, reason


class TransportMismatch(RemoteError):
    retryable = True

    HOW: Final = "set DLOG_TLS=required, and DLOG_TLS_CA, DLOG_TLS_CERT and DLOG_TLS_KEY"

    def __init__(self, name: str, reason: str, advice: str) -> None:
        super().__init__(f"bookie {name} {reason}; {advice}")
        self.name, self.reason = name, reason


class AccessDenied(RemoteError):
    """Retry only after the right was granted. Adds in flight may or may not be kept."""

    def __init__(self, identity: str, role: str, what: str, *, logs: str = "") -> None:
        """*identity*: from this process's own certificate. *what* is denied; *logs*
        is what to grant for it, empty for roles of the cluster."""
        who = f"{identity} is" if identity else "this process is"
        grant = f"dlog access grant {identity or 'WHO'} {role}{f' {logs!r}' if logs else ''}"
        super().__init__(
            f"{who} not allowed to {what}: that needs the role {role}. "
            f"To allow it, an operator runs: {grant}"
        )
        self.identity, self.role, self.what, self.logs = identity, role, what, logs


class NoSuchLedger(RemoteError):
    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"ledger {ledger_id} does not exist: it was never created, or was deleted")
        self.ledger_id = ledger_id


class WriterFailed(RemoteError):
    outcome_unknown = True

    def __init__(self, ledger_id: int, reason: str) -> None:
        super().__init__(
            f"the writer of ledger {ledger_id} cannot continue: {reason}. "
            "Recover the ledger and continue in a new one"
        )
        self.ledger_id, self.reason = ledger_id, reason


class KeyDiffers(RemoteError):
    """Retry in a new ledger; in the same one only once its bookies are repaired."""

    retryable = True

    def __init__(self, ledger_id: int, *, closed_empty: bool = False) -> None:
        """*closed_empty*: the ledger was CLOSED without an entry, so nothing added is kept."""
        closed = "It was closed; nothing that was added is in it. " if closed_empty else ""
        super().__init__(
            f"ledger {ledger_id} is damaged: bookies hold it under a key that differs from its "
            "metadata. An unauthorized client created it there first, or one of the two was "
            f"changed. The password is right. {closed}Continue in a new ledger, and inspect this "
            "one with 'dlog ledger show'"
        )
        self.ledger_id, self.closed_empty = ledger_id, closed_empty


class LedgerFenced(RemoteError):
    """The ledger was taken over. Adds in flight may or may not be kept (rule 10)."""

    outcome_unknown = True

    def __init__(self, ledger_id: int) -> None:
        super().__init__(
            f"ledger {ledger_id} was fenced: another process recovers it. "
            "Adds that were not acknowledged may or may not be in it; read it to know"
        )
        self.ledger_id = ledger_id


class RecoveryFailed(RemoteError):
    retryable = True

    def __init__(self, ledger_id: int, reason: str) -> None:
        super().__init__(
            f"ledger {ledger_id} could not be recovered: {reason}. Nothing was decided; "
            "bring its bookies back and try again"
        )
        self.ledger_id, self.reason = ledger_id, reason


class SourceInUse(CallerError):
    retryable = True

    def __init__(self, uri: str, bookies: Sequence[str]) -> None:
        super().__init__(
            f"{uri} is in use, by bookies {', '.join(bookies)}: what they write there meanwhile "
            "would not be in the copy. Stop everything that uses it; the registration of a process "
            "that is gone expires with its session, in some seconds"
        )
        self.uri, self.bookies = uri, tuple(bookies)


class TargetNotEmpty(CallerError):
    def __init__(self, uri: str, names: Sequence[str]) -> None:
        super().__init__(
            f"{uri} is not empty: it has {', '.join(names[:_NAMES_MAX])}. Name an empty "
            "target, or remove what an interrupted copy has left there"
        )
        self.uri, self.names = uri, tuple(names)


class LedgerClosed(CallerError):
    def __init__(self, ledger_id: int, last_entry: int) -> None:
        super().__init__(
            f"ledger {ledger_id} is closed already, and its last entry is {last_entry}: that is "
            "final. To remove records of a log, run 'dlog log truncate'"
        )
        self.ledger_id, self.last_entry = ledger_id, last_entry


class EndBelowConfirmed(CallerError):
    def __init__(self, ledger_id: int, end: int, confirmed: int) -> None:
        super().__init__(
            f"ledger {ledger_id} is not closed at {end}: entry {confirmed} is proven to be "
            "confirmed, so readers may have it already. Give that entry or a higher one, or accept "
            "the loss with --below-confirmed"
        )
        self.ledger_id, self.end, self.confirmed = ledger_id, end, confirmed


class EndNotHeld(CallerError):
    def __init__(self, ledger_id: int, end: int, held: int) -> None:
        super().__init__(
            f"ledger {ledger_id} is not closed at {end}: no reachable bookie returns entry "
            f"{held + 1}. Bring back those that are gone, or close it at {held}"
        )
        self.ledger_id, self.end, self.held = ledger_id, end, held


class EndUncertain(RemoteError):
    retryable = True

    def __init__(self, ledger_id: int, held: int, doubts: Sequence[str]) -> None:
        super().__init__(
            f"the end of ledger {ledger_id} is uncertain: all up to entry {held} is held, and "
            f"{'; '.join(doubts)}. Bring these bookies back and try again, or decide: "
            f"'dlog ledger close-at {ledger_id} {held}' shows what that cuts"
        )
        self.ledger_id, self.held, self.doubts = ledger_id, held, tuple(doubts)


class BookiesMissing(RemoteError):
    retryable = True

    def __init__(self, bookies: Sequence[str]) -> None:
        super().__init__(
            f"bookies are unavailable: {', '.join(bookies)}. Entries that only they hold would be "
            "cut: start them, and try again; leave out a permanently lost one with --without"
        )
        self.bookies = tuple(bookies)


class ConfirmedEntryMissing(RecoveryFailed):
    """Its copies are lost or unavailable, or a bookie received a false confirmation."""

    def __init__(self, ledger_id: int, entry_id: int, claimants: Sequence[str]) -> None:
        self.entry_id, self.claimants = entry_id, tuple(claimants)
        who = ", ".join(self.claimants) or "the metadata"
        super().__init__(
            ledger_id,
            f"entry {entry_id} is confirmed according to {who}, and no replica returns it; if none "
            "can come back, close the ledger: "
            f"dlog ledger close-at {ledger_id} ENTRY --below-confirmed",
        )


class EntryUnavailable(RemoteError):
    """Nothing is known to be lost: a bookie that did not answer may well have it."""

    retryable = True

    def __init__(self, ledger_id: int, entry_id: int, reason: str) -> None:
        super().__init__(
            f"entry {entry_id} of ledger {ledger_id} cannot be read now: {reason}; "
            "bring its bookies back"
        )
        self.ledger_id, self.entry_id, self.reason = ledger_id, entry_id, reason


class EntryLost(RemoteError):
    """Every replica answered that it lacks, or cannot read, the entry. A repair may restore it."""

    retryable = True

    def __init__(self, ledger_id: int, entry_id: int, reason: str) -> None:
        super().__init__(
            f"entry {entry_id} of ledger {ledger_id} cannot be read from any replica: {reason}"
        )
        self.ledger_id, self.entry_id, self.reason = ledger_id, entry_id, reason


class DamagedEntry(StorageError):
    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what} is damaged: {reason}")
        self.what, self.reason = what, reason


class DamagedMetadata(StorageError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"metadata at {path} cannot be read: {reason}")
        self.path, self.reason = path, reason


class BadMessage(StorageError):
    def __init__(self, message: str, reason: str, advice: str = _FITTING_VERSIONS) -> None:
        super().__init__(f"message {message} cannot be used: {reason}; {advice}")
        self.message, self.reason = message, reason


class DamagedMessage(BadMessage):
    """Its request was not executed; its reply is unknown."""

    retryable = True
    outcome_unknown = True

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message, reason, "it was damaged in transit; repeat the call")
