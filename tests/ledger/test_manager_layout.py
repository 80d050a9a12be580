import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.manager import LAYOUTS


@pytest.mark.parametrize(
    ("layout", "ledger_id", "path"),
    [
        ("flat", 0, "/ledgers/L0000000000"),
        ("flat", 1234567890, "/ledgers/L1234567890"),
        ("hierarchical", 1, "/ledgers/00/0000/L0001"),
        ("hierarchical", 1234567890, "/ledgers/12/3456/L7890"),
        ("longhierarchical", 1, "/ledgers/000/0000/0000/0000/L0001"),
        ("longhierarchical", 2**63 - 1, "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_paths_are_as_documented(layout: str, ledger_id: int, path: str) -> None:
    assert LAYOUTS[layout].path(ledger_id) == path


@given(st.sampled_from(sorted(LAYOUTS)), st.integers(0, 2**63 - 1))
def test_a_path_leads_back_to_its_id(name: str, number: int) -> None:
    layout = LAYOUTS[name]
    ledger_id = number % (layout.id_max + 1)
    names = tuple(layout.path(ledger_id).split("/")[2:])
    assert len(names) == layout.depth
    assert all(layout.is_name(name, level) for level, name in enumerate(names))
    assert layout.ledger_id(names) == ledger_id


@given(st.sampled_from(sorted(LAYOUTS)), st.lists(st.integers(0, 2**63 - 1), max_size=8))
def test_paths_sort_as_their_ids(name: str, numbers: list[int]) -> None:
    layout = LAYOUTS[name]
    ids = sorted(number % (layout.id_max + 1) for number in numbers)
    assert sorted(map(layout.path, ids)) == [layout.path(ledger_id) for ledger_id in ids]


@pytest.mark.parametrize("name", ["", "L", "L123", "L12345", "1234", "l1234", "L12é4", "L١٢٣٤"])
def test_other_names_are_no_ledgers(name: str) -> None:
    assert not LAYOUTS["hierarchical"].is_name(name, 2)


@pytest.mark.parametrize("name", ["", "1", "123", "L1", "1a"])
def test_other_names_are_no_inner_nodes(name: str) -> None:
    assert not LAYOUTS["hierarchical"].is_name(name, 0)
