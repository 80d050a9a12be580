"""The tree of versioned nodes as a plain value in memory: no clock, no I/O, no tasks.

The in-memory store and the simulator both wrap it, so it is also the executable meaning of
the port. A node counts the children ever made below it, whatever was deleted since: that
count numbers sequential nodes. Ephemeral nodes belong to a session by its id.

Every change collects the paths whose value, existence or list of children is another now;
`take_changed` hands them over, in the order of the changes, for the watches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from ledger.errors import (
    BadVersion,
    InvalidPath,
    LogError,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
)
from ledger.metastore.ops import (
    ANY_VERSION,
    ROOT,
    CheckOp,
    CreateOp,
    DeleteOp,
    Op,
    SetOp,
    Versioned,
    check_new,
    check_ops,
    check_path,
    check_value,
    name_of,
    numbered,
    parent_of,
)


@dataclass(slots=True)
class _Node:
    value: bytes
    owner: str | None
    version: int = 0
    made: int = 0
    children: dict[str, None] = field(default_factory=dict)


class Tree:
    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {ROOT: _Node(b"", None)}
        self._owned: dict[str, dict[str, None]] = {}
        self._changed: dict[str, None] = {}
        self._undo: list[Callable[[], None]] | None = None
        """Steps back, last one first; kept during a `multi` only."""

    def get(self, path: str) -> Versioned:
        node = self._node(path)
        return Versioned(node.value, node.version)

    def exists(self, path: str) -> int | None:
        node = self._nodes.get(check_path(path))
        return None if node is None else node.version

    def children(self, path: str) -> list[str]:
        return sorted(self._node(path).children)

    def owner(self, path: str) -> str | None:
        """Return the session that an ephemeral node belongs to."""
        return self._node(path).owner

    def create(
        self, path: str, value: bytes = b"", *, owner: str | None = None, sequential: bool = False
    ) -> str:
        """Create a node and its missing parents; ephemeral iff *owner* is given."""
        check_new(path, value, sequential=sequential)
        parent = parent_of(path)
        if not sequential and path in self._nodes:
            raise NodeExists(path)
        missing = []
        while parent not in self._nodes:
            missing.append(parent)
            parent = parent_of(parent)
        self._check_may_hold(parent, path)
        for above in reversed(missing):
            self._link(above, _Node(b"", None))
        if sequential:
            path = numbered(path, self._nodes[parent_of(path)].made)
        self._link(path, _Node(value, owner))
        return path

    def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        check_value(path, value)
        node = self._at(path, version)
        before = node.value, node.version

        def undo() -> None:
            node.value, node.version = before

        self._remember(undo)
        node.value, node.version = value, node.version + 1
        self._changed[path] = None
        return node.version

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        node = self._at(path, version)
        if path == ROOT:
            raise InvalidPath(path, "the root cannot be deleted")
        if node.children:
            raise NodeNotEmpty(path)
        self._unlink(path)
        self._remember(lambda: self._relink(path, node))

    def check(self, path: str, version: int = ANY_VERSION) -> None:
        self._at(path, version)

    def multi(self, ops: Sequence[Op], *, owner: str) -> None:
        """Do all of *ops* or none; ephemeral nodes among them get *owner*."""
        check_ops(ops)
        changed_before = dict(self._changed)
        steps: list[Callable[[], None]] = []
        self._undo = steps
        try:
            for op in ops:
                self._apply(op, owner)
        except LogError:
            self._undo = None
            for undo in reversed(steps):
                undo()
            self._changed = changed_before
            raise
        finally:
            self._undo = None

    def end_session(self, owner: str) -> None:
        """Delete the ephemeral nodes of *owner*."""
        for path in list(self._owned.get(owner, ())):
            self._unlink(path)

    def take_changed(self) -> tuple[str, ...]:
        """Return the paths that changed since the last call."""
        changed = tuple(self._changed)
        self._changed.clear()
        return changed

    def _apply(self, op: Op, owner: str) -> None:
        match op:
            case CheckOp(path, version):
                self.check(path, version)
            case CreateOp(path, value, ephemeral):
                if parent_of(path) not in self._nodes:
                    raise NoSuchNode(parent_of(path))
                if path in self._nodes:
                    raise NodeExists(path)
                self._check_may_hold(parent_of(path), path)
                self._link(path, _Node(value, owner if ephemeral else None))
            case SetOp(path, value, version):
                self.set(path, value, version)
            case DeleteOp(path, version):
                self.delete(path, version)
            case _:
                assert_never(op)

    def _node(self, path: str) -> _Node:
        node = self._nodes.get(check_path(path))
        if node is None:
            raise NoSuchNode(path)
        return node

    def _at(self, path: str, version: int) -> _Node:
        node = self._node(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(path, version)
        return node

    def _check_may_hold(self, parent: str, path: str) -> None:
        if self._nodes[parent].owner is not None:
            raise InvalidPath(path, f"{parent} is ephemeral and can have no children")

    def _link(self, path: str, node: _Node) -> None:
        parent = self._nodes[parent_of(path)]
        parent.made += 1
        self._relink(path, node)

        def undo() -> None:
            self._unlink(path)
            parent.made -= 1

        self._remember(undo)

    def _relink(self, path: str, node: _Node) -> None:
        self._nodes[path] = node
        self._nodes[parent_of(path)].children[name_of(path)] = None
        if node.owner is not None:
            self._owned.setdefault(node.owner, {})[path] = None
        self._note(path)

    def _unlink(self, path: str) -> None:
        node = self._nodes.pop(path)
        del self._nodes[parent_of(path)].children[name_of(path)]
        if node.owner is not None:
            owned = self._owned[node.owner]
            del owned[path]
            if not owned:
                del self._owned[node.owner]
        self._note(path)

    def _remember(self, undo: Callable[[], None]) -> None:
        if self._undo is not None:
            self._undo.append(undo)

    def _note(self, path: str) -> None:
        self._changed[path] = None
        self._changed[parent_of(path)] = None
