"""Bugs of elections: what is concluded from silence, and what is left behind."""

import asyncio

from leader import lifeline, term, withdrawal
from leader.campaign import _Campaign
from leader.refusals import LifelineAddress, Refusals
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

    async def noted(self: _Campaign, session: Session, token: str) -> term.Term | None:
        began[token] = session
        return await candidacy(self, session, token)

    async def withdraw(store: MetadataStore, session: Session, log: str, token: str) -> None:
        await honest(store, began.get(token, session), log, token)

    patch.set(_Campaign, "_candidacy", noted)
    patch.set(withdrawal, "_withdraw", withdraw)


@mutation("", logs=True)
def takes_silence_of_a_lifeline_for_death(patch: Patch) -> None:
    honest = lifeline._verified

    async def verified(
        address: LifelineAddress,
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await honest(address)
        except TimeoutError:
            raise ConnectionRefusedError from None

    patch.set(lifeline, "_verified", verified)


@mutation("", logs=True)
def takes_another_process_at_its_port_for_its_death(patch: Patch) -> None:
    honest = lifeline._verified

    async def verified(
        address: LifelineAddress,
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
