"""What processes do to logs and consumers, as operations that can be stopped (`interrupting`)."""

from dlog.names import path_of
from dlog.protocol import lifecycle
from dlog.protocol.actions import RecoverSegment
from dlog.protocol.consumer_steps import ConsumerState, ConsumerSteps
from dlog.protocol.edits import add_segment, check_writable, seal_segment, trim
from dlog.protocol.manifest_steps import ManifestSteps, delete_listed
from ledger.errors import LogError
from ledger.protocol.procedure import Steps
from tests.dlog.protocol.interrupting import Namespace, Operation, act


def seal(log: str = "a") -> Operation:
    return Operation(f"seals {log}", lambda _: lifecycle.seal(ManifestSteps(log)), log)


def rename(old: str = "a", new: str = "b") -> Operation:
    def steps(_: Namespace) -> Steps[None]:
        return lifecycle.rename(ManifestSteps(old), ManifestSteps(new), now_ms=lambda: 7)

    return Operation(f"renames {old} to {new}", steps, old)


def create(log: str = "a") -> Operation:
    return Operation(
        f"creates {log}",
        lambda ns: lifecycle.create(ManifestSteps(log), None, incarnations=ns.token),
        log,
    )


def ensure(log: str = "a") -> Operation:
    return Operation(
        f"ensures {log}",
        lambda ns: lifecycle.ensure(ManifestSteps(log), None, incarnations=ns.token),
        log,
    )


def drop(log: str = "a") -> Operation:
    return Operation(f"drops {log}", lambda _: lifecycle.drop(ManifestSteps(log)), log)


def begin_drop(log: str = "a") -> Operation:
    return Operation(
        f"begins to drop {log}", lambda _: lifecycle.begin_drop(ManifestSteps(log)), log
    )


def take_over(log: str = "a") -> Operation:
    """What a takeover does to manifest and ledgers."""

    def steps(namespace: Namespace) -> Steps[None]:
        node = ManifestSteps(log)
        manifest, version = yield from node.read()
        check_writable(manifest, log)
        for segment in manifest.segments:
            if segment.sealed is None:
                end = yield from RecoverSegment(segment.ledger_id, last_txid=0)
                manifest = manifest.with_sealed(segment.number, end)
        ledger_id = namespace.new_ledger(manifest.incarnation)
        wanted = manifest.taken_over(manifest.next_segment, ledger_id, 0, "rival")
        yield from node.write(wanted, version)

    return Operation(f"takes {log} over", steps, log)


def roll(log: str = "a") -> Operation:
    """What its writer does: seal the segment before the last one, and list one more."""

    def steps(namespace: Namespace) -> Steps[None]:
        node = ManifestSteps(log)
        manifest, _ = yield from node.read()
        check_writable(manifest, log)
        still_open = [segment for segment in manifest.segments if segment.sealed is None]
        for segment in still_open[:-1]:
            end = yield from RecoverSegment(segment.ledger_id, last_txid=0)
            yield from node.edit(
                seal_segment(log, segment.number, segment.ledger_id, end, now_ms=0)
            )
        if still_open:
            another = add_segment(
                log,
                incarnation=manifest.incarnation,
                own_segment=still_open[-1].number,
                number=manifest.next_segment,
                ledger_id=namespace.new_ledger(manifest.incarnation),
                now_ms=0,
            )
            yield from node.edit(another)

    return Operation(f"rolls {log}", steps, log)


def truncate(log: str = "a") -> Operation:
    def steps(_namespace: Namespace) -> Steps[None]:
        node = ManifestSteps(log)
        manifest, _ = yield from node.read()
        edit = trim(log, manifest.sealed_end, incarnation=manifest.incarnation)
        yield from delete_listed(node, (yield from node.edit(edit)))

    return Operation(f"truncates {log}", steps, log)


def consumer(namespace: Namespace, log: str = "a", name: str = "shop") -> ConsumerSteps:
    return ConsumerSteps(log, name, token=namespace.token())


def begin_consumer(name: str = "new", log: str = "a") -> Operation:
    """Create a consumer, as who opens it first does."""

    def steps(namespace: Namespace) -> Steps[None]:
        manifest, _ = yield from ManifestSteps(log).read()
        state = ConsumerState(
            incarnation=namespace.token(), log_incarnation=manifest.incarnation, position=0
        )
        yield from consumer(namespace, log, name).create(state)

    return Operation(f"begins to consume {log} as {name}", steps, log)


def commit(offset: int, log: str = "a") -> Operation:
    """Open the consumer shared, and commit."""

    def steps(namespace: Namespace) -> Steps[ConsumerState]:
        node = consumer(namespace, log)
        opened = yield from node.read_to_edit()
        state, _ = yield from node.edit(
            lambda state: state.committed(offset, by=opened[0], name="shop", now_ms=0), opened
        )
        return state

    return Operation(f"commits {offset} in {log}", steps, log)


def reset(offset: int, log: str = "a") -> Operation:
    def steps(namespace: Namespace) -> Steps[ConsumerState]:
        node = consumer(namespace, log)
        known = yield from node.read_to_edit()
        state, _ = yield from node.edit(
            lambda state: state.was_reset(offset, owner="resetter", now_ms=0), known
        )
        return state

    return Operation(f"resets to {offset} in {log}", steps, log)


def forget(name: str = "shop", log: str = "a") -> Operation:
    return Operation(f"forgets {name} of {log}", lambda ns: consumer(ns, log, name).delete(), log)


def hold(log: str = "a") -> Operation:
    """Have the consumer for itself, commit, and let it go again."""

    def steps(namespace: Namespace) -> Steps[None]:
        node = consumer(namespace, log)
        trouble: LogError | None = None
        try:
            yield from node.lock("holder", wait_s=0.0)
            known = yield from node.read_to_edit()
            yield from node.edit(
                lambda state: state.opened(exclusive=True, owner="holder", now_ms=0), known
            )
        except LogError as error:
            trouble = error
        yield from node.unlock(session_lost=lambda: False)
        if trouble is not None:
            raise trouble

    return Operation(f"has shop of {log} for itself", steps, log)


def living() -> Namespace:
    """A log with a sealed segment and two that are open, and consumers, one of them locked.

    What others create anew is brought to the versions that its nodes have here."""
    namespace = Namespace()
    consumers = *map(begin_consumer, ("shop", "audit", "fresh")), commit(2)
    founding = act(namespace, "founder", create(), take_over(), take_over(), roll(), *consumers)
    assert [run.error for run in founding] == [None] * len(founding)
    namespace.tree.create(f"{path_of('a')}/consumers/audit/lock", b"x somebody", owner="auditor")
    return namespace


def half_dropped(log: str = "a") -> Namespace:
    """The log is being deleted; whoever began has died."""
    namespace = living()
    if log != "a":
        act(namespace, "founder", rename("a", log))
    act(namespace, "founder", begin_drop(log))
    return namespace


def beside_half_dropped() -> Namespace:
    """Log a is alive, and a log b is being deleted."""
    namespace = half_dropped("b")
    act(namespace, "founder", create(), take_over(), begin_consumer("shop"))
    return namespace


MADE_ANEW = (drop(), create(), take_over(), take_over(), roll(), begin_consumer("shop"), commit(1))
RIVALS: tuple[tuple[Operation, ...], ...] = (
    (seal(),),
    (rename(),),
    (rename(), rename("b", "a")),
    (rename(), create(), take_over(), begin_consumer("shop"), commit(1)),
    (create("b"),),
    (drop(),),
    (begin_drop(),),
    MADE_ANEW,
    (create(),),
    (take_over(),),
    (roll(),),
    (truncate(),),
    (begin_consumer("shop"),),
    (commit(5),),
    (reset(1),),
    (forget(),),
    (forget(), begin_consumer("shop"), commit(1)),
    (forget("fresh"), begin_consumer("fresh")),
    (hold(),),
)
"""What others may do to a log at the same time, from beginning to end."""
RIVALS_OF_DROPPED: tuple[tuple[Operation, ...], ...] = (
    (drop(),),
    (create(), take_over(), begin_consumer("shop")),
    (create(), rename()),
    (create(), drop()),
    (create("b"), take_over("b"), begin_consumer("shop", "b")),
    (rename("b", "a"),),
    MADE_ANEW,
)
"""The same, where a log is being deleted: what else they may do is refused, or was done before."""
