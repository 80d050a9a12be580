"""Processes of this machine, found by what they are."""

from collections.abc import Callable
from pathlib import Path


def matching(test: Callable[[int, bytes], bool]) -> list[int]:
    """Return the processes for which *test*, given id and command line, says true."""
    found: list[int] = []
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            if test(int(path.name), (path / "cmdline").read_bytes()):
                found.append(int(path.name))
        except OSError:
            continue
    return found


def children(parent: int, marked: bytes) -> list[int]:
    """Return the children of *parent* whose command line has *marked*."""

    def is_one(pid: int, command: bytes) -> bool:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return marked in command and int(state[1]) == parent

    return matching(is_one)
