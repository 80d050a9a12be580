"""Bugs of elections: what is concluded from silence, and what is left behind."""

import asyncio

from leader import lifeline, term, withdrawal
from leader.campaign import _Campaign
from leader.election import Candidacy
from leader.refusals import LifelineAddress, Refusals
from leader.term import Term
from ledger.metastore.port import MetadataStore, Session
from tests.simulation.mutations.mutation import Patch, mutation


@mutation(
    "",
    logs=True,
    drawn=False,
    test="tests/leader/test_silence.py"
    "::test_a_campaign_that_is_given_up_while_its_create_is_on_its_way_leaves_no_node",
)
def withdraws_without_a_barrier(patch: Patch) -> None:
    """A create that is done after the look leaves a node that holds everybody back."""
    honest = withdrawal.delete_node

    async def delete_node(store: MetadataStore, path: str) -> None:
        if not path.endswith("barrier"):
            await honest(store, path)

    patch.set(withdrawal, "delete_node", delete_node)


@mutation(
    "own bug",
    logs=True,
    drawn=False,
    test="tests/leader/test_campaign.py"
    "::test_a_session_lost_between_look_and_create_leaves_no_node_behind",
)
def withdraws_until_the_session_of_its_beginning_is_lost(patch: Patch) -> None:
    """The node may be in the one that came after it. Not drawn: a simulated session is replaced
    after its heartbeat only, not within a look."""
    began: dict[str, Session] = {}
    honest, candidacy = withdrawal._withdraw, _Campaign._candidacy

    async def noted(self: _Campaign, session: Session, token: str) -> Term | None:
        began[token] = session
        return await candidacy(self, session, token)

    async def withdraw(store: MetadataStore, session: Session, log: str, token: str) -> None:
        await honest(store, began.get(token, session), log, token)

    patch.set(_Campaign, "_candidacy", noted)
    patch.set(withdrawal, "_withdraw", withdraw)


@mutation(
    "",
    logs=True,
    test="tests/leader/test_silence.py"
    "::test_a_port_that_takes_connections_and_says_nothing_is_no_sign_of_death",
)
def takes_silence_of_a_lifeline_for_death(patch: Patch) -> None:
    honest = lifeline._verified

    async def verified(
        address: LifelineAddress, _security: object = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await honest(address)
        except TimeoutError:
            raise ConnectionRefusedError from None

    patch.set(lifeline, "_verified", verified)


@mutation(
    "",
    logs=True,
    drawn=False,
    test="tests/leader/test_lifeline.py"
    "::test_a_port_of_somebody_else_means_nothing_not_even_when_it_closes",
)
def takes_another_process_at_its_port_for_its_death(patch: Patch) -> None:
    """Not drawn: no two simulated machines have one address, unless it is a loopback one, whose
    refusals are not believed; and nobody else gets a port that is in use."""
    honest = lifeline._verified

    async def verified(
        address: LifelineAddress, _security: object = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await honest(address)
        except ConnectionAbortedError:
            raise ConnectionRefusedError from None

    patch.set(lifeline, "_verified", verified)


@mutation("", logs=True)
def believes_its_own_machine_about_a_process_on_another(patch: Patch) -> None:
    def is_death(_: Refusals, address: LifelineAddress, *, here: str) -> bool:
        return bool(address.network and here)

    patch.set(Refusals, "is_death", is_death)


@mutation("", logs=True)
def resigns_without_a_word(patch: Patch) -> None:
    """Its node stays, as long as its session does."""

    async def withdraw(*_: object) -> None:
        return

    patch.set(term, "withdraw", withdraw)


_TERM = "tests/leader/test_term.py"
"""Not drawn, what follows: fencing decides who can write, whoever believes that he leads."""


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_TERM}::test_a_leader_whose_lease_is_over_knows_it_before_any_task_of_it_has_run",
)
def believes_in_itself_until_somebody_tells_it(patch: Patch) -> None:
    def is_current(self: Term) -> bool:
        return not self.lost.is_set() and not self._session.lost.is_set()

    patch.set(Term, "is_current", is_current)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_TERM}"
    "::test_seeing_its_node_proves_that_it_led_when_it_asked_and_not_when_it_was_answered",
)
def counts_its_lease_from_the_answer(patch: Patch) -> None:
    honest = Term._node_exists

    async def node_exists(self: Term) -> bool | None:
        seen = await honest(self)
        if seen:
            self._proven_at = self._clock()
        return seen

    patch.set(Term, "_node_exists", node_exists)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_TERM}::test_what_is_verified_held_when_it_was_asked_for_and_not_when_it_was_answered",
)
def verifies_as_of_the_answer(patch: Patch) -> None:
    honest = Term.verify

    async def verify(self: Term) -> bool:
        verified = await honest(self)
        if verified:
            self._proven_at = self._clock()
        return verified

    patch.set(Term, "verify", verify)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_TERM}"
    "::test_a_create_of_ours_that_landed_late_does_not_stand_for_our_node_that_is_gone",
)
def takes_any_node_of_ours_for_the_one_that_was_elected(patch: Patch) -> None:
    class AnyOfOurs(Candidacy):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Candidacy) and self.token == other.token

        __hash__ = Candidacy.__hash__

    honest = Term.verify

    async def verify(self: Term) -> bool:
        own = self._candidacy
        self._candidacy = AnyOfOurs(own.sequence, own.name, own.token)
        return await honest(self)

    patch.set(Term, "verify", verify)
