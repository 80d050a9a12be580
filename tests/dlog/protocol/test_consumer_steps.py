"""What is done to a consumer's node, action by action."""

from typing import Any

from dlog.errors import ConsumerBusy, ConsumerFenced, NoSuchConsumer, NoSuchLog
from dlog.protocol.actions import Delete, Get, Sync, Transact
from dlog.protocol.consumer_steps import UNLOCK_RETRY_S, AwaitChange, ConsumerSteps
from dlog.protocol.manifest_steps import LOST_REPLIES_MAX
from ledger.errors import MetadataUnavailable
from ledger.metastore.ops import CheckOp, CreateOp, DeleteOp, SetOp
from tests.dlog.protocol import operations as op
from tests.dlog.protocol.interrupting import Actor, Namespace, Operation, Run, act

SHOP = "/logs/a/consumers/shop"


def begun(namespace: Namespace, operation: Operation) -> Run[Any]:
    return Run(namespace, Actor("operator", operation.log), operation.steps(namespace))


def until(run: Run[Any], kind: type[object]) -> None:
    """Go on until the next action is one of *kind*."""
    while not isinstance(run.next_action, kind):
        run.one()


def test_a_commit_requires_the_log_the_number_of_deletions_and_the_version_that_it_saw() -> None:
    run = begun(op.living(), op.commit(4)).to_its_end()
    swap = run.actions[-1]
    assert isinstance(swap, Transact)
    assert swap.ops[:2] == (CheckOp("/logs/a/incarnation-token-1"), CheckOp("/logs/a/consumers", 0))
    last = swap.ops[2]
    assert isinstance(last, SetOp)
    assert (last.path, last.version) == (SHOP, 1)


def test_a_commit_that_others_were_faster_than_never_moves_back() -> None:
    namespace = op.living()
    run = begun(namespace, op.commit(4))
    until(run, Transact)
    run.one(before=lambda: act(namespace, "rival", op.commit(9)))
    assert run.to_its_end().result.position == 9


def test_a_commit_beside_a_reset_is_refused() -> None:
    namespace = op.living()
    run = begun(namespace, op.commit(4))
    until(run, Transact)
    run.one(before=lambda: act(namespace, "rival", op.reset(0)))
    assert isinstance(run.to_its_end().error, ConsumerFenced)


def test_a_commit_to_a_consumer_of_a_renamed_log_says_that_there_is_none() -> None:
    namespace = op.living()
    run = begun(namespace, op.commit(4))
    until(run, Transact)
    run.one(before=lambda: act(namespace, "rival", op.rename()))
    assert isinstance(run.error, NoSuchConsumer)


def test_a_reset_whose_answer_was_lost_is_done_once() -> None:
    namespace = op.living()
    run = begun(namespace, op.reset(0))
    until(run, Transact)
    run.one("lost reply")
    assert run.to_its_end().result.epoch == 2
    assert sum(isinstance(action, Transact) for action in run.actions) == 1


def test_a_commit_gives_up_after_some_answers_that_were_lost() -> None:
    run = begun(op.living(), op.commit(4))
    while not run.over:
        run.one("lost request" if isinstance(run.next_action, Transact) else "goes on")
    assert isinstance(run.error, MetadataUnavailable)
    assert sum(isinstance(action, Transact) for action in run.actions) == LOST_REPLIES_MAX


def test_a_consumer_is_begun_again_when_the_log_rolled_meanwhile_and_not_when_it_is_gone() -> None:
    namespace = op.living()
    run = begun(namespace, op.begin_consumer())
    until(run, Transact)
    run.one(before=lambda: act(namespace, "rival", op.roll()))
    assert run.to_its_end().error is None
    run = begun(namespace, op.begin_consumer("late"))
    until(run, Transact)
    run.one(before=lambda: act(namespace, "rival", *op.MADE_ANEW))
    assert isinstance(run.to_its_end().error, NoSuchLog)


def test_a_consumer_that_is_forgotten_is_counted_in_the_same_transaction() -> None:
    run = begun(op.living(), op.forget()).to_its_end()
    assert run.actions == [Transact((SetOp("/logs/a/consumers", b""), DeleteOp(SHOP)))]


def test_a_consumer_that_is_in_use_is_not_forgotten_and_its_holder_named() -> None:
    error = begun(op.living(), op.forget("audit")).to_its_end().error
    assert isinstance(error, ConsumerBusy)
    assert "somebody" in str(error)


def test_a_lock_without_an_answer_is_found_to_be_its_own() -> None:
    namespace = op.living()
    run = begun(namespace, _lock())
    run.one("lost reply")
    assert isinstance(run.error, MetadataUnavailable)
    again = begun(namespace, _lock()).to_its_end()
    assert again.error is None
    assert again.actions[1] == Get(f"{SHOP}/lock")


def test_a_lock_that_another_one_has_is_waited_for_as_long_as_was_said() -> None:
    namespace = op.living()
    namespace.tree.create(f"{SHOP}/lock", b"x other", owner="other")
    run = begun(namespace, _lock(wait_s=2.5)).to_its_end()
    assert isinstance(run.error, ConsumerBusy)
    assert run.actions[-1] == AwaitChange(2.5)


def test_a_lock_that_was_let_go_meanwhile_is_taken() -> None:
    namespace = op.living()
    namespace.tree.create(f"{SHOP}/lock", b"x other", owner="other")
    run = begun(namespace, _lock())
    run.one()
    run.one(before=lambda: namespace.tree.end_session("other"))
    run.one()
    run.to_its_end()
    assert run.error is None
    create = CreateOp(f"{SHOP}/lock", b"mine me", ephemeral=True)
    assert run.actions[-1] == Transact((CheckOp(SHOP), create))


def test_a_lock_is_let_go_for_certain_or_until_its_session_ends() -> None:
    namespace = op.living()
    begun(namespace, _lock()).to_its_end()
    lost = False
    node = ConsumerSteps("a", "shop", token="mine")
    run = begun(namespace, Operation("unlocks", lambda _: node.unlock(session_lost=lambda: lost)))
    run.one("lost request")
    assert run.now == UNLOCK_RETRY_S
    run.to_its_end()
    assert [type(action) for action in run.actions] == [Sync, Sync, Get, Delete]
    lost = True
    run = begun(namespace, Operation("unlocks", lambda _: node.unlock(session_lost=lambda: lost)))
    assert run.over


def test_a_lock_of_another_one_is_not_let_go() -> None:
    namespace = op.living()
    namespace.tree.create(f"{SHOP}/lock", b"other other", owner="other")
    node = ConsumerSteps("a", "shop", token="mine")
    steps = Operation("unlocks", lambda _: node.unlock(session_lost=lambda: False))
    assert Delete not in [type(action) for action in begun(namespace, steps).to_its_end().actions]


def _lock(wait_s: float = 0.0) -> Operation:
    node = ConsumerSteps("a", "shop", token="mine")
    return Operation("locks", lambda _: node.lock("me", wait_s=wait_s))
