"""Seal, rename, create and delete, action by action."""

from typing import Any

from dlog.errors import LogExists, LostOwnership, NoSuchLog, TakeoverFailed
from dlog.manifest import Manifest
from dlog.protocol import lifecycle
from dlog.protocol.actions import DeleteLedger, Fence, Get, RecoverSegment, Sync, Transact
from dlog.protocol.edits import drop_log
from dlog.protocol.manifest_steps import CONFLICTS_MAX, LOST_REPLIES_MAX, ManifestSteps
from ledger.errors import BadVersion, DamagedMetadata, MetadataUnavailable
from ledger.ids import LedgerId
from ledger.metastore.ops import CheckOp, CreateOp, DeleteOp
from tests.dlog.protocol import operations as op
from tests.dlog.protocol.interrupting import Actor, Namespace, Operation, Run, act

FIRST, SECOND, THIRD = (LedgerId(number) for number in (2, 3, 4))
"""Ledgers of `operations.living`: of the segment that is sealed, and of the two that are open."""


def begun(namespace: Namespace, operation: Operation) -> Run[Any]:
    return Run(namespace, Actor("operator", operation.log), operation.steps(namespace))


def until(run: Run[Any], kind: type[object]) -> None:
    """Go on until the next action is one of *kind*."""
    while not isinstance(run.next_action, kind):
        run.one()


# Sealing.


def test_a_seal_looks_then_recovers_what_is_open_in_order_then_swaps_the_manifest() -> None:
    namespace = op.living()
    run = begun(namespace, op.seal()).to_its_end()
    kinds = [type(action) for action in run.actions]
    assert kinds == [Sync, Get, RecoverSegment, RecoverSegment, Sync, Get, Transact]
    assert run.actions[2:4] == [RecoverSegment(SECOND, 0), RecoverSegment(THIRD, 0)]
    assert run.result.sealed


def test_a_log_that_is_sealed_is_looked_at_and_left_alone() -> None:
    namespace = op.living()
    act(namespace, "somebody", op.seal())
    run = begun(namespace, op.seal()).to_its_end()
    assert [type(action) for action in run.actions] == [Sync, Get]


def test_a_seal_begins_again_after_a_while_if_the_log_was_taken_over_meanwhile() -> None:
    namespace = op.living()
    run = begun(namespace, op.seal())
    until(run, RecoverSegment)
    run.one(after=lambda: act(namespace, "rival", op.take_over()))
    run.to_its_end()
    recovered = [a.ledger_id for a in run.actions if isinstance(a, RecoverSegment)]
    assert recovered[:2] == [SECOND, THIRD]
    assert len(recovered) == 3
    assert run.result.sealed
    assert run.now == lifecycle.BACKOFF_S


def test_a_seal_gives_up_if_others_take_the_log_over_each_time() -> None:
    namespace = op.living()
    run = begun(namespace, op.seal())
    while not run.over:
        if isinstance(run.next_action, RecoverSegment):
            run.one(after=lambda: act(namespace, "rival", op.take_over()))
        else:
            run.one()
    assert isinstance(run.error, TakeoverFailed)
    assert run.now < lifecycle.ATTEMPTS_MAX * lifecycle.BACKOFF_S_MAX


def test_a_ledger_that_is_gone_when_it_is_to_be_recovered_is_a_race() -> None:
    namespace = op.living()
    run = begun(namespace, op.seal())
    until(run, RecoverSegment)
    run.one(before=lambda: act(namespace, "rival", op.drop()))
    assert isinstance(run.to_its_end().error, NoSuchLog)


def test_who_seals_its_own_log_leaves_that_of_who_took_over_alone() -> None:
    namespace = op.living()
    own = Operation("closes", lambda _: lifecycle.seal(ManifestSteps("a"), own=[FIRST]))
    run = begun(namespace, own).to_its_end()
    assert isinstance(run.error, LostOwnership)
    assert not namespace.ledgers[THIRD].closed


# Renaming.


def test_a_rename_is_one_transaction_that_requires_what_it_saw() -> None:
    namespace = op.living()
    version = namespace.tree.get("/logs/a").version
    run = begun(namespace, op.rename()).to_its_end()
    changes = [action for action in run.actions if isinstance(action, Transact)]
    assert len(changes) == 1
    ops = changes[0].ops
    assert [each.path for each in ops if isinstance(each, CreateOp)] == [
        "/logs/b",
        "/logs/b/incarnation-token-1-1",
        "/logs/b/consumers",
        *(f"/logs/b/consumers/{name}" for name in ("audit", "fresh", "shop")),
        "/renamed/token-1",
    ]
    versions = {each.path: each.version for each in ops if isinstance(each, DeleteOp)}
    assert versions["/logs/a"] == version
    assert versions["/logs/a/consumers"] == 0
    assert versions["/logs/a/consumers/shop"] == 1


def test_a_rename_without_an_answer_asks_where_the_log_is_now() -> None:
    namespace = op.living()
    run = begun(namespace, op.rename())
    until(run, Transact)
    run.one("lost reply")
    run.to_its_end()
    assert run.error is None
    assert run.actions[-1] == Get("/renamed/token-1")


def test_who_cannot_tell_whether_the_log_had_the_name_for_a_while_says_so() -> None:
    namespace = op.living()
    run = begun(namespace, op.rename())
    until(run, Transact)
    run.one("lost reply", after=lambda: act(namespace, "rival", op.rename("b", "c")))
    assert isinstance(run.to_its_end().error, MetadataUnavailable)


def test_a_name_that_was_taken_meanwhile_is_refused() -> None:
    namespace = op.living()
    run = begun(namespace, op.rename())
    until(run, Transact)
    run.one(before=lambda: act(namespace, "rival", op.create("b")))
    assert isinstance(run.to_its_end().error, LogExists)


def test_a_rename_gives_up_if_the_log_changes_all_the_time() -> None:
    namespace = op.living()
    run = begun(namespace, op.rename())
    while not run.over:
        if isinstance(run.next_action, Transact):
            run.one(before=lambda: act(namespace, "rival", op.take_over()))
        else:
            run.one()
    assert isinstance(run.error, BadVersion)
    assert sum(isinstance(action, Transact) for action in run.actions) == CONFLICTS_MAX


# Creating and deleting.


def test_a_deletion_marks_the_log_before_it_fences_and_deletes_a_ledger() -> None:
    run = begun(op.living(), op.drop()).to_its_end()
    order = [a for a in run.actions if isinstance(a, Transact | Fence | DeleteLedger)]
    assert isinstance(order[0], Transact)
    assert order[1:6] == [
        Fence(SECOND),
        Fence(THIRD),
        DeleteLedger(FIRST),
        DeleteLedger(SECOND),
        DeleteLedger(THIRD),
    ]
    assert isinstance(order[-1], Transact)
    assert [type(each) for each in order[-1].ops] == [DeleteOp, DeleteOp]


def test_each_step_of_a_deletion_requires_the_log_that_was_asked_for() -> None:
    run = begun(op.living(), op.drop()).to_its_end()
    own = CheckOp("/logs/a/incarnation-token-1")
    changes = [action.ops for action in run.actions if isinstance(action, Transact)]
    assert all(ops[0] == own for ops in changes[:-1])
    assert changes[-1][0] == DeleteOp("/logs/a/incarnation-token-1")


def test_no_ledger_is_deleted_if_nobody_knows_whether_a_bookie_was_asked_to_fence() -> None:
    namespace = op.living()
    run = begun(namespace, op.drop())
    until(run, Fence)
    run.one("lost reply")
    assert isinstance(run.error, MetadataUnavailable)
    assert set(namespace.ledgers) == {FIRST, SECOND, THIRD}


def test_a_deletion_that_somebody_else_has_finished_is_over() -> None:
    namespace = op.living()
    run = begun(namespace, op.drop())
    until(run, Fence)
    run.one(before=lambda: act(namespace, "rival", op.drop(), op.create()))
    run.to_its_end()
    assert run.error is None
    assert "a" in {name for name, _ in namespace.look.logs.values()}


def test_a_creation_without_an_answer_is_tried_as_another_incarnation() -> None:
    namespace = Namespace()
    run = begun(namespace, op.create())
    until(run, Transact)
    run.one("lost request")
    run.to_its_end()
    assert run.result.incarnation == "token-2"


def test_a_creation_that_arrived_without_an_answer_is_found_to_be_its_own() -> None:
    namespace = Namespace()
    run = begun(namespace, op.create())
    until(run, Transact)
    run.one("lost reply")
    assert run.to_its_end().result.incarnation == "token-1"


# Edits of a manifest.


def test_an_edit_whose_answer_was_lost_finds_itself_done() -> None:
    namespace = op.living()
    run = begun(namespace, op.begin_drop())
    until(run, Transact)
    run.one("lost reply")
    run.to_its_end()
    assert run.error is None
    assert sum(isinstance(action, Transact) for action in run.actions) == 1


def test_an_edit_gives_up_after_some_answers_that_were_lost() -> None:
    namespace = op.living()
    run = begun(namespace, op.begin_drop())
    while not run.over:
        run.one("lost request" if isinstance(run.next_action, Transact) else "goes on")
    assert isinstance(run.error, MetadataUnavailable)
    assert sum(isinstance(action, Transact) for action in run.actions) == LOST_REPLIES_MAX


def test_a_log_whose_mark_is_missing_is_damaged_and_not_written() -> None:
    namespace = Namespace()
    manifest = Manifest(incarnation="old")
    namespace.tree.create("/logs/a", manifest.encode("a"))
    edit = drop_log("a", incarnation="old")
    changes = Operation("edits", lambda _: ManifestSteps("a").edit(edit))
    run = begun(namespace, changes).to_its_end()
    assert isinstance(run.error, DamagedMetadata)
    assert "the mark of its life old is missing" in str(run.error)
    assert namespace.tree.get("/logs/a").version == 0
