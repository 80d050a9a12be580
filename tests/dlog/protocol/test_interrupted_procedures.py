"""Each procedure stopped at each of its actions, and all that others may do coming in between.

Nothing here is drawn by lot. A procedure is killed, or left without an answer, to what was done or
was not, at every one of its actions; and at every one, before it and after it, somebody else seals,
renames, deletes, creates, takes over, rolls or truncates the log, or changes its consumers. Then
somebody asks for the same once more, and a janitor makes a pass. `interrupting.Namespace` judges:
nothing leaks, nothing comes back, no other log and no other consumer is touched.
"""

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dlog.errors import ConsumerFenced
from dlog.manifest import Manifest
from tests.dlog.protocol import operations as op
from tests.dlog.protocol.interrupting import (
    Namespace,
    Operation,
    Run,
    ViolationError,
    act,
    interrupted,
    interruptions,
)

Rivals = Sequence[tuple[Operation, ...]]
Scene = Callable[[], Namespace]
Truth = Callable[[Namespace, Run[Any]], bool]
"""Whether what a procedure that succeeded was asked for has happened."""


def stops_anywhere(
    scene: Scene, operation: Operation, truth: Truth, rivals: Rivals = op.RIVALS
) -> int:
    """Run *operation* in all ways; return in how many. Raises `ViolationError`."""
    began = pickle.dumps(scene())
    (undisturbed,) = act(pickle.loads(began), "operator", operation)
    assert undisturbed.error is None
    runs = 0
    for interruption in interruptions(undisturbed.actions, rivals):
        namespace = pickle.loads(began)
        try:
            run = interrupted(namespace, operation, interruption)
            _check_outcome(namespace, run, truth)
            act(namespace, "somebody", operation)
            namespace.settle()
        except ViolationError as error:
            raise ViolationError(f"{operation.name}, {interruption}: {error}") from error
        runs += 1
    return runs


def _check_outcome(namespace: Namespace, run: Run[Any], truth: Truth) -> None:
    """See that it does not say that it was done, or not done, and the contrary is true."""
    if run.killed:
        return
    error = run.error
    if error is None:
        if not truth(namespace, run):
            raise ViolationError("it says that it was done, and it was not")
        return
    if error.outcome_unknown or isinstance(error, ConsumerFenced):
        return
    for each in run.actor.changed:
        if each in namespace.gone:
            continue
        name, dropped = _log_of(namespace, each)
        if dropped or name != run.actor.log:
            continue  # it was changed, and then deleted or renamed by others
        raise ViolationError(f"it says {error}, and has changed {each}")


def _log_of(namespace: Namespace, incarnation: str) -> tuple[str, bool]:
    """Return the name that a log, or the log of a consumer, has now, and whether it goes."""
    look = namespace.look
    if incarnation in look.consumers:
        incarnation = look.consumers[incarnation].log_incarnation
    name, manifest = look.logs[incarnation]
    return name, manifest.dropped


def _meant(run: Run[Any]) -> str:
    assert run.actor.meant is not None
    return run.actor.meant


@pytest.mark.slow
def test_a_seal_that_stops_anywhere_is_a_seal_or_none() -> None:
    def sealed(namespace: Namespace, run: Run[Manifest]) -> bool:
        return _meant(run) in namespace.sealed

    assert stops_anywhere(op.living, op.seal(), sealed) > 30


@pytest.mark.slow
def test_a_rename_that_stops_anywhere_has_moved_all_or_nothing() -> None:
    def renamed(namespace: Namespace, run: Run[None]) -> bool:
        return "b" in namespace.names[_meant(run)]

    assert stops_anywhere(op.living, op.rename(), renamed) > 30


@pytest.mark.slow
def test_a_rename_to_a_name_that_is_being_deleted_stops_anywhere() -> None:
    def renamed(namespace: Namespace, run: Run[None]) -> bool:
        return "b" in namespace.names[_meant(run)]

    rivals = op.RIVALS_OF_DROPPED
    assert stops_anywhere(op.beside_half_dropped, op.rename(), renamed, rivals) > 30


@pytest.mark.slow
def test_a_deletion_that_stops_before_it_has_begun_deletes_nothing() -> None:
    def going(namespace: Namespace, run: Run[Manifest]) -> bool:
        log = namespace.look.logs.get(_meant(run))
        return log is None or log[1].dropped

    assert stops_anywhere(op.living, op.begin_drop(), going) > 30


@pytest.mark.slow
def test_a_deletion_that_stops_anywhere_is_finished_by_somebody() -> None:
    def gone(namespace: Namespace, run: Run[None]) -> bool:
        return _meant(run) in namespace.gone

    rivals = (*op.RIVALS_OF_DROPPED, (op.rename(), op.rename("b", "a")))
    assert stops_anywhere(op.living, op.drop(), gone, rivals) > 30


@pytest.mark.slow
@pytest.mark.parametrize("scene", [Namespace, op.half_dropped])
def test_a_creation_that_stops_anywhere_makes_one_log_or_none(scene: Scene) -> None:
    def made(namespace: Namespace, run: Run[Manifest]) -> bool:
        return "a" in namespace.names[run.result.incarnation]

    assert stops_anywhere(scene, op.create(), made, op.RIVALS_OF_DROPPED) > 30


@pytest.mark.slow
def test_a_log_that_is_ensured_is_there_or_others_deleted_it() -> None:
    rivals = op.RIVALS_OF_DROPPED[:2]  # what a creation does beside others is shown above
    assert stops_anywhere(op.half_dropped, op.ensure(), lambda *_: True, rivals) > 30


@pytest.mark.slow
def test_a_consumer_that_is_begun_anywhere_is_of_a_log_that_lives() -> None:
    assert stops_anywhere(op.living, op.begin_consumer(), lambda *_: True) > 30


def test_a_commit_that_stops_anywhere_moves_its_own_consumer_or_none() -> None:
    def committed(namespace: Namespace, run: Run[Any]) -> bool:
        found = [s for s in namespace.states if s.incarnation == run.result.incarnation]
        return run.result in found and run.result.position >= 4

    assert stops_anywhere(op.living, op.commit(4), committed) > 30


@pytest.mark.slow
def test_a_reset_that_stops_anywhere_is_done_or_not() -> None:
    def was_reset(namespace: Namespace, run: Run[Any]) -> bool:
        return run.result in namespace.states and run.result.owner == "resetter"

    assert stops_anywhere(op.living, op.reset(0), was_reset) > 30


def test_a_consumer_that_is_forgotten_anywhere_is_gone_or_not() -> None:
    def gone(namespace: Namespace, _: Run[None]) -> bool:
        return bool(namespace.gone)

    assert stops_anywhere(op.living, op.forget(), gone) > 30


@pytest.mark.slow
def test_a_lock_that_stops_anywhere_is_let_go() -> None:
    assert stops_anywhere(op.living, op.hold(), lambda *_: True) > 30
