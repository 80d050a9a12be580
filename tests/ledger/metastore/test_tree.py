"""The tree in memory: what the contract suite cannot see from outside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import BadVersion, InvalidPath, LogError, NodeExists, NoSuchNode, ValueTooLarge
from ledger.metastore.port import (
    VALUE_BYTES_MAX,
    CheckOp,
    CreateOp,
    DeleteOp,
    Op,
    SetOp,
    Versioned,
)
from ledger.metastore.tree import Tree


def test_changes_name_the_node_and_its_parent_once_and_in_order() -> None:
    tree = Tree()
    tree.create("/a/b")
    assert tree.take_changed() == ("/a", "/", "/a/b")
    tree.set("/a/b", b"x")
    tree.set("/a/b", b"y")
    assert tree.take_changed() == ("/a/b",)
    tree.delete("/a/b")
    assert tree.take_changed() == ("/a/b", "/a")
    assert tree.take_changed() == ()


def test_a_failed_change_changes_nothing() -> None:
    tree = Tree()
    tree.create("/a", b"v")
    tree.take_changed()
    with pytest.raises(BadVersion):
        tree.set("/a", b"w", 7)
    with pytest.raises(NodeExists):
        tree.create("/a")
    assert tree.get("/a") == Versioned(b"v", 0)
    assert tree.take_changed() == ()


def test_a_failed_multi_restores_values_children_sequence_and_changes() -> None:
    tree = Tree()
    tree.create("/a", b"v")
    tree.create("/gone", b"g", owner="s1")
    before = snapshot(tree)
    tree.take_changed()
    tree.set("/a", b"w")
    tree.set("/a", b"v")
    with pytest.raises(BadVersion):
        tree.multi(
            [
                CreateOp("/a/c", b"1"),
                CreateOp("/a/d", b"2", ephemeral=True),
                SetOp("/a", b"x"),
                DeleteOp("/gone"),
                DeleteOp("/a/c"),
                CheckOp("/a", 77),
            ],
            owner="s2",
        )
    assert tree.take_changed() == ("/a",)
    assert {path: value for path, (value, _) in snapshot(tree).items()} == {
        path: value for path, (value, _) in before.items()
    }
    assert tree.owner("/gone") == "s1"
    assert tree.create("/a/n-", sequential=True) == "/a/n-0000000000"
    tree.end_session("s2")
    assert tree.children("/") == ["a", "gone"]


def test_the_end_of_a_session_takes_its_nodes_only() -> None:
    tree = Tree()
    tree.create("/e/1", owner="s1")
    tree.create("/e/2", owner="s2")
    tree.create("/e/3", owner="s1")
    tree.take_changed()
    tree.end_session("s1")
    assert tree.children("/e") == ["2"]
    assert tree.take_changed() == ("/e/1", "/e", "/e/3")
    tree.end_session("s1")
    assert tree.take_changed() == ()


def test_sequence_numbers_count_every_child_ever_made() -> None:
    tree = Tree()
    assert tree.create("/q/a-", sequential=True) == "/q/a-0000000000"
    tree.create("/q/plain")
    assert tree.create("/q/", sequential=True) == "/q/0000000002"
    for name in tree.children("/q"):
        tree.delete(f"/q/{name}")
    assert tree.create("/q/a-", sequential=True) == "/q/a-0000000003"


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/a/./b", "/../a", "/a\0b"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidPath):
        Tree().get(path)
    with pytest.raises(InvalidPath):
        Tree().create(path)


def test_nothing_lives_below_an_ephemeral_node_and_the_root_stays() -> None:
    tree = Tree()
    tree.create("/e", owner="s")
    with pytest.raises(InvalidPath):
        tree.create("/e/child")
    with pytest.raises(InvalidPath):
        tree.create("/e/deep/child")
    assert tree.children("/e") == []
    with pytest.raises(InvalidPath):
        Tree().delete("/")
    with pytest.raises(InvalidPath):
        tree.create("/")


def test_values_over_the_limit_are_refused_everywhere() -> None:
    tree = Tree()
    tree.create("/a", b"x" * VALUE_BYTES_MAX)
    large = b"x" * (VALUE_BYTES_MAX + 1)
    for call in (
        lambda: tree.set("/a", large),
        lambda: tree.create("/b", large),
        lambda: tree.multi([CreateOp("/b", large)], owner="s"),
        lambda: tree.multi([SetOp("/a", large)], owner="s"),
    ):
        with pytest.raises(ValueTooLarge):
            call()
    assert tree.children("/") == ["a"]


def snapshot(tree: Tree, path: str = "/") -> dict[str, tuple[bytes, int]]:
    found = tree.get(path)
    result = {path: (found.value, found.version)}
    for name in tree.children(path):
        result |= snapshot(tree, f"{path.rstrip('/')}/{name}")
    return result


_paths = st.sampled_from(["/a", "/b", "/a/x", "/a/y", "/b/x"])
_versions = st.sampled_from([-1, 0, 1])
_ops = st.one_of(
    st.builds(CreateOp, _paths, st.binary(max_size=2), st.booleans()),
    st.builds(SetOp, _paths, st.binary(max_size=2), _versions),
    st.builds(DeleteOp, _paths, _versions),
    st.builds(CheckOp, _paths, _versions),
)


@given(st.lists(st.lists(_ops, max_size=4), max_size=6))
def test_multi_is_all_or_nothing(transactions: list[list[Op]]) -> None:
    tree = Tree()
    for ops in transactions:
        before = snapshot(tree)
        tree.take_changed()
        try:
            tree.multi(ops, owner="s")
        except (LogError, NoSuchNode):
            assert snapshot(tree) == before
            assert tree.take_changed() == ()
