"""What the metadata store was: reads of a client may see it, until it asks for a `sync`.

A client of ZooKeeper is served by one server, which may be behind the leader. What it reads is
the tree as it was at some change, the same or a later one with each read, never before what it
wrote, learned by a watch, or waited for with `sync`; and no longer ago than its server lags.
"""

from bisect import bisect_right

from ledger.errors import NoSuchNode
from ledger.metastore.ops import ROOT, Versioned, check_path, name_of, parent_of
from ledger.metastore.tree import Tree


class HidingTree(Tree):
    """A tree that hides one node from lists, or from reads, as damage does."""

    def __init__(self, tree: Tree, hidden: str, *, from_lists: bool) -> None:
        super().__init__()
        self._tree = tree
        self._hidden = hidden
        self._from_lists = from_lists
        self.hid = False
        """Whether anything that was read was another than it is."""

    def get(self, path: str) -> Versioned:
        if self._hides(path):
            raise NoSuchNode(path)
        return self._tree.get(path)

    def exists(self, path: str) -> int | None:
        version = self._tree.exists(path)
        return None if version is not None and self._hides(path) else version

    def children(self, path: str) -> list[str]:
        names = self._tree.children(path)
        if not self._from_lists or parent_of(self._hidden) != path:
            return names
        self.hid |= name_of(self._hidden) in names
        return [name for name in names if name != name_of(self._hidden)]

    def _hides(self, path: str) -> bool:
        hides = not self._from_lists and path == self._hidden
        self.hid |= hides
        return hides


Snapshot = tuple[Versioned, tuple[str, ...]] | None
"""Value, version and names of the children; None: there was no such node."""


class Past:
    """All that the nodes of a tree ever were, by the number of the change that made it so."""

    def __init__(self, tree: Tree) -> None:
        self.change = 0
        """The newest one."""
        self._tree = tree
        self._times: list[float] = [0.0]
        """When each change was made."""
        self._numbers: dict[str, list[int]] = {}
        self._snapshots: dict[str, list[Snapshot]] = {}
        self._note_all(ROOT)

    def changed(self, paths: tuple[str, ...], now_s: float) -> None:
        """Take note of one change, which made these nodes what they are now."""
        self.change += 1
        self._times.append(now_s)
        for path in paths:
            self._note(path)

    def as_of(self, time_s: float) -> int:
        """Return the last change that was made by then."""
        return max(0, bisect_right(self._times, time_s) - 1)

    def find(self, path: str, change: int) -> tuple[Snapshot, bool]:
        """Return what was there after *change*, and whether it has changed since."""
        numbers = self._numbers.get(path, [])
        index = bisect_right(numbers, change)
        snapshot = self._snapshots[path][index - 1] if index else None
        return snapshot, index < len(numbers)

    def _note_all(self, path: str) -> None:
        self._note(path)
        for name in self._tree.children(path):
            self._note_all(f"{path.rstrip('/')}/{name}")

    def _note(self, path: str) -> None:
        self._numbers.setdefault(path, []).append(self.change)
        self._snapshots.setdefault(path, []).append(self._snapshot(path))

    def _snapshot(self, path: str) -> Snapshot:
        if self._tree.exists(path) is None:
            return None
        return self._tree.get(path), tuple(self._tree.children(path))


class PastTree(Tree):
    """The tree as it was after one change, to be read only."""

    def __init__(self, past: Past, change: int) -> None:
        super().__init__()
        self._past = past
        self._change = change
        self.lagged = False
        """Whether anything that was read is another by now."""

    def get(self, path: str) -> Versioned:
        return self._there(path)[0]

    def exists(self, path: str) -> int | None:
        snapshot = self._find(path)
        return None if snapshot is None else snapshot[0].version

    def children(self, path: str) -> list[str]:
        return list(self._there(path)[1])

    def _there(self, path: str) -> tuple[Versioned, tuple[str, ...]]:
        snapshot = self._find(path)
        if snapshot is None:
            raise NoSuchNode(path)
        return snapshot

    def _find(self, path: str) -> Snapshot:
        snapshot, changed = self._past.find(check_path(path), self._change)
        self.lagged |= changed
        return snapshot
