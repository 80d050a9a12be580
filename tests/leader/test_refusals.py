"""What a follower makes of a candidate whose port refuses from the start."""

import asyncio
from dataclasses import replace

from leader.election import leaders_path
from leader.lifeline import Lifeline, network
from leader.record import CandidateRecord
from leader.refusals import STACKS_MAX, LifelineAddress, Refusals
from ledger.metastore import open_store
from tests.patience import patient_campaign
from tests.waiting import TEST_S, eventually

LOG = "flights"
HERE = "this stack"
ELSEWHERE = LifelineAddress("10.0.0.7", 4711, b"secret", "another stack")


def test_in_our_own_network_stack_a_refusal_is_a_death_every_time() -> None:
    refusals = Refusals()
    for host in ("127.0.0.1", "::1", "10.0.0.7", "localhost"):
        for port in (1, 2):
            assert refusals.is_death(LifelineAddress(host, port, b"", HERE), here=HERE)


def test_a_loopback_address_of_another_stack_means_nothing() -> None:
    refusals = Refusals()
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        assert not refusals.is_death(replace(ELSEWHERE, host=host), here=HERE)


def test_an_unknown_stack_means_nothing_also_where_we_do_not_know_our_own() -> None:
    for here in (HERE, ""):
        assert not Refusals().is_death(replace(ELSEWHERE, network=""), here=here)


def test_another_host_is_believed_once_until_a_candidate_there_has_proven_itself() -> None:
    """So an address that misleads deposes a living leader once, and never in turns."""
    refusals = Refusals()
    assert refusals.is_death(ELSEWHERE, here=HERE)
    assert not refusals.is_death(replace(ELSEWHERE, port=4712), here=HERE)
    refusals.proven(replace(ELSEWHERE, port=4713))
    assert refusals.is_death(replace(ELSEWHERE, port=4714), here=HERE)
    assert refusals.is_death(replace(ELSEWHERE, port=4715), here=HERE)


def test_a_proof_counts_for_the_stack_that_gave_it_only() -> None:
    refusals = Refusals()
    refusals.proven(ELSEWHERE)
    namesake = replace(ELSEWHERE, network="a third stack, with the same private address")
    assert refusals.is_death(namesake, here=HERE)
    assert not refusals.is_death(namesake, here=HERE)


def test_what_is_remembered_of_other_stacks_is_bounded() -> None:
    refusals = Refusals()
    for boot in range(2 * STACKS_MAX):
        refusals.proven(replace(ELSEWHERE, network=f"boot {boot}"))
    assert len(refusals) == STACKS_MAX


def test_the_stack_that_was_last_heard_of_longest_ago_is_forgotten_first() -> None:
    refusals = Refusals()
    for boot in range(STACKS_MAX):
        refusals.proven(replace(ELSEWHERE, network=f"boot {boot}"))
    refusals.proven(replace(ELSEWHERE, network="boot 0"))
    refusals.proven(replace(ELSEWHERE, network="one more"))
    for boot, known in ((0, True), (1, False)):
        address = replace(ELSEWHERE, network=f"boot {boot}")
        answers = [refusals.is_death(address, here=HERE) for _ in range(2)]
        assert answers == [True, known], "who is not known is believed once"


def test_a_network_stack_keeps_its_name() -> None:
    assert network() == network() != ""


async def test_a_candidate_whose_predecessor_died_unwatched_leads_before_its_session_ends() -> None:
    dead, store = (
        await open_store("memory://refusals"),
        await open_store("memory://refusals"),
    )
    lifeline = Lifeline.open("127.0.0.1")
    lifeline.close()
    node = CandidateRecord("dead", 0, lifeline.address).encode()
    prefix = f"{leaders_path(LOG)}/dead-"
    await dead.create(prefix, node, ephemeral=True, sequential=True)
    term = await patient_campaign(store, LOG)
    assert not dead.session.lost.is_set()
    await term.resign()


def test_a_candidate_of_another_machine_with_a_loopback_address_is_left_in_peace() -> None:
    async def scenario() -> None:
        async with asyncio.timeout(TEST_S):
            other, store = await open_store("memory://peace"), await open_store("memory://peace")
            lifeline = Lifeline.open("127.0.0.1")
            lifeline.close()
            address = replace(lifeline.address, network="another machine")
            node = CandidateRecord("other", 0, address).encode()
            prefix = f"{leaders_path(LOG)}/other-"
            made = await other.create(prefix, node, ephemeral=True, sequential=True)
            standing = asyncio.create_task(patient_campaign(store, LOG))

            async def stands() -> bool:
                return len(await store.children(leaders_path(LOG))) == 2

            await eventually(stands, "it stands behind the other")
            done, _ = await asyncio.wait({standing}, timeout=0.3)
            assert not done
            assert await store.exists(made) is not None
            standing.cancel()
            await asyncio.wait({standing})

    asyncio.run(scenario())
