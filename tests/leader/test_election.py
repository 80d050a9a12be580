"""The pure decision: who leads and whom to watch."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from leader.election import (
    Absent,
    Candidacy,
    Elected,
    Following,
    candidacies,
    leaders_path,
    standing,
)


def node(token: str, sequence: int) -> str:
    return f"{token}-{sequence:010d}"


def candidacy(token: str, sequence: int) -> Candidacy:
    return Candidacy(sequence, node(token, sequence), token)


def test_the_only_candidate_is_elected() -> None:
    assert standing([node("a", 7)], "a") == Elected(candidacy("a", 7))


def test_the_lowest_sequence_leads_whatever_the_order_of_the_names() -> None:
    children = sorted([node("zz", 3), node("aa", 4), node("mm", 5)])
    assert children[0] == node("aa", 4)
    assert standing(children, "zz") == Elected(candidacy("zz", 3))


def test_each_other_candidate_watches_the_one_just_before_it() -> None:
    children = [node("c", 12), node("a", 3), node("d", 40), node("b", 9)]
    assert standing(children, "b") == Following(candidacy("b", 9), candidacy("a", 3))
    assert standing(children, "c") == Following(candidacy("c", 12), candidacy("b", 9))
    assert standing(children, "d") == Following(candidacy("d", 40), candidacy("c", 12))


def test_a_candidate_without_a_node_is_absent() -> None:
    assert standing([], "a") == Absent()
    assert standing([node("b", 1)], "a") == Absent()


def test_a_second_node_of_the_same_candidate_is_surplus_and_never_its_predecessor() -> None:
    children = [node("a", 1), node("b", 2), node("b", 3)]
    assert standing(children, "b") == Following(
        candidacy("b", 2), candidacy("a", 1), (candidacy("b", 3),)
    )
    assert standing(children[1:], "b") == Elected(candidacy("b", 2), (candidacy("b", 3),))


def test_nodes_that_no_candidate_made_are_ignored() -> None:
    strangers = ["lock", "x-12", "-0000000001", "y-00000000zz", "z-٠٠٠٠٠٠٠٠٠٠"]
    assert candidacies([*strangers, node("a", 5)]) == [candidacy("a", 5)]


def test_sequences_past_ten_digits_are_ordered_as_numbers() -> None:
    assert standing([node("b", 10**10), node("a", 10**10 - 1)], "a") == Elected(
        candidacy("a", 10**10 - 1)
    )


def test_a_token_may_hold_dashes() -> None:
    assert Candidacy.parse("my-host-12-0000000004") == Candidacy(
        4, "my-host-12-0000000004", "my-host-12"
    )


def test_the_path_of_a_log_is_one_component_whatever_its_name() -> None:
    assert leaders_path("flights") == "/leaders/flights"
    assert leaders_path("eu/west/flights") == "/leaders/eu%2Fwest%2Fflights"
    assert leaders_path("a%2Fb") == "/leaders/a%252Fb"
    assert leaders_path("größe") == "/leaders/gr%C3%B6%C3%9Fe"


@given(st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=30), st.randoms())
def test_exactly_one_leads_and_nobody_is_watched_twice(sequences: set[int], random: Random) -> None:
    children = [node(f"t{sequence}", sequence) for sequence in sorted(sequences)]
    random.shuffle(children)
    found = [standing(children, f"t{sequence}") for sequence in sorted(sequences)]
    assert [type(each) for each in found] == [Elected] + [Following] * (len(sequences) - 1)
    watched = [each.predecessor for each in found if isinstance(each, Following)]
    assert len(set(watched)) == len(watched)
