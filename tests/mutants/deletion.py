"""Deletes one statement at a time and shows which deletions no test notices.

    python -m tests.mutants.deletion ledger/protocol bookie/autorecovery/protocol/repair_plan.py

The tests of a room are collected once, in one warm process; each deletion is a fork of it, in which
the function has the code without the statement, and which runs the tests that call that function,
the quickest first, until one fails. So a deletion takes a tenth of a second, not the start of a
pytest. A deletion that lives is either not needed, or a test is missing: what was judged stands in
`tests.mutants.survivors`, and any other survivor makes the exit status 1.

Not deleted: docstrings, assertions (they state what is true anyway), imports, definitions, and what
stands outside of functions.
"""

import argparse
import ast
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType
from typing import Any, Final, TypeVar

import pytest

from tests.mutants.mutant import ROOT
from tests.mutants.survivors import JUDGED

ROOMS: Final = {
    "ledger/protocol": ("tests/ledger/protocol",),
    "bookie/autorecovery/protocol": ("tests/bookie/autorecovery",),
    "bookie/loss": (
        "tests/bookie/loss",
        "tests/bookie/storage",
        "tests/bookie/identity/test_restore.py",
    ),
    "bookie/identity": ("tests/bookie/identity",),
}
"""Which tests know a room: of these the quick ones."""
TESTS_CPU_S_MAX: Final = 3.0
"""So much of the tests that call a function runs in one process; what lives meets the next."""
HANGS_CPU_S: Final = 5
"""Beside three times what the tests take: a test that computes for longer is endless, which is
noticed."""
HANGS_S: Final = 60.0
"""The same for a test that waits."""
MEMORY_BYTES_MAX: Final = 4 << 30

_F = TypeVar("_F", ast.FunctionDef, ast.AsyncFunctionDef)
_CALLED: Final = "__called_by_a_test__"
_KEPT: Final = (
    ast.Assert,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.FunctionDef,
    ast.Global,
    ast.Import,
    ast.ImportFrom,
    ast.Nonlocal,
    ast.Pass,
)


@dataclass(frozen=True, slots=True)
class Deletion:
    """A statement of a function, at *line* of *file*."""

    file: str
    function: str
    """The outermost one, as the code names it."""
    starts: int
    """First line of that function, or of its decorators."""
    line: int
    column: int
    text: str
    """The first line of the statement."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.file, self.function, self.text


def deletions(file: str) -> Iterator[Deletion]:
    """Yield what can be deleted in *file*, in order."""
    source = (ROOT / file).read_text()

    def within(node: ast.AST, name: str) -> Iterator[Deletion]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                starts = min([child.lineno, *(each.lineno for each in child.decorator_list)])
                yield from _of_function(child, file, name + child.name, starts, source)
            elif isinstance(child, ast.ClassDef):
                yield from within(child, f"{name}{child.name}.")

    yield from within(ast.parse(source), "")


def _of_function(
    function: ast.AST, file: str, name: str, starts: int, source: str
) -> Iterator[Deletion]:
    statements = [each for each in ast.walk(function) if isinstance(each, ast.stmt)]
    for node in sorted(statements, key=lambda each: (each.lineno, each.col_offset)):
        if node is function or isinstance(node, _KEPT):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        if isinstance(node, ast.AnnAssign) and node.value is None:
            continue
        text = source.splitlines()[node.lineno - 1].strip()
        yield Deletion(file, name, starts, node.lineno, node.col_offset, text)


class _Deleting(ast.NodeTransformer):
    def __init__(self, deletion: Deletion) -> None:
        self._at = deletion.line, deletion.column

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.stmt) and (node.lineno, node.col_offset) == self._at:
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)


class _Reporting(ast.NodeTransformer):
    """Lets each outermost function report that it is called."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return self._reporting(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        return self._reporting(node)

    @staticmethod
    def _reporting(node: _F) -> _F:
        starts = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        report = ast.Call(ast.Name(_CALLED, ast.Load()), [ast.Constant(starts)], [])
        node.body.insert(0, ast.copy_location(ast.Expr(report), node.body[0]))
        return node


def _codes(file: str, change: ast.NodeTransformer) -> dict[tuple[str, int], CodeType]:
    """Return the code of all functions of *file* after *change*, by name and first line."""
    path = ROOT / file
    tree = ast.fix_missing_locations(change.visit(ast.parse(path.read_text())))
    codes: dict[tuple[str, int], CodeType] = {}
    waiting = [compile(tree, str(path), "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        codes[code.co_qualname, code.co_firstlineno] = code
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
    return codes


def _functions(files: Iterable[str]) -> dict[tuple[str, int], FunctionType]:
    """Return the functions of *files* that there are, by file and first line."""
    named = {str(ROOT / file): file for file in files}
    gc.unfreeze()  # else they are not found
    functions = {
        (named[each.__code__.co_filename], each.__code__.co_firstlineno): each
        for each in gc.get_objects()
        if isinstance(each, FunctionType) and each.__code__.co_filename in named
    }
    gc.freeze()
    return functions


class Deleter:
    """A plugin of pytest: runs the tests without any deletion, then with each."""

    def __init__(self, chosen: Sequence[Deletion]) -> None:
        self.survivors: list[Deletion] = []
        self.failing: list[str] = []
        """Tests that fail without any deletion; they say nothing."""
        self._chosen = chosen
        self._called: set[tuple[str, int]] = set()
        """Functions that the present test calls."""
        self._calls: dict[tuple[str, int], list[pytest.Item]] = {}
        """Which tests call a function: by its file and first line."""
        self._cpu_s: dict[pytest.Item, float] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed or session.config.option.collectonly:
            raise session.Interrupted("the tests cannot be collected")
        functions = _functions({each.file: None for each in self._chosen})
        self._run_all(session, functions)
        for deletion in self._chosen:
            function = functions.get((deletion.file, deletion.starts))
            if function is None or self._lives(session, deletion, function):
                self.survivors.append(deletion)
                _say(f"{deletion.file}:{deletion.line}: {deletion.function}: {deletion.text}")
        return True

    def _run_all(
        self, session: pytest.Session, functions: dict[tuple[str, int], FunctionType]
    ) -> None:
        """Run all tests without any deletion; find out who calls what."""
        as_they_are = {function: function.__code__ for function in functions.values()}
        for file in {each.file: None for each in self._chosen}:
            codes = _codes(file, _Reporting())
            for (where, starts), function in functions.items():
                code = codes.get((function.__code__.co_qualname, starts))
                if where == file and code is not None:
                    function.__globals__[_CALLED] = partial(self._report, file)
                    function.__code__ = code
        for number, item in enumerate(session.items):
            after = session.items[number + 1 : number + 2]
            self._called.clear()
            failed, began = session.testsfailed, time.process_time()
            item.config.hook.pytest_runtest_protocol(
                item=item, nextitem=after[0] if after else None
            )
            self._cpu_s[item] = time.process_time() - began
            if session.testsfailed > failed:
                self.failing.append(item.nodeid)
                continue
            for key in self._called:
                self._calls.setdefault(key, []).append(item)
        for function, code in as_they_are.items():
            function.__code__ = code

    def _report(self, file: str, starts: int) -> None:
        self._called.add((file, starts))

    def _lives(self, session: pytest.Session, deletion: Deletion, function: FunctionType) -> bool:
        for tests in self._turns(deletion):
            cpu_s = HANGS_CPU_S + round(3 * sum(self._cpu_s[item] for item in tests))
            child = os.fork()
            if child == 0:
                _confine(session, cpu_s)
                os._exit(_run(session, deletion, function, tests))
            if _ended_badly(child):
                return False
        return True

    def _turns(self, deletion: Deletion) -> Iterator[list[pytest.Item]]:
        """Yield the tests that call the function, the quickest first, in turns of bounded time."""
        took_s, turn = 0.0, list[pytest.Item]()
        callers = self._calls.get((deletion.file, deletion.starts), ())
        for item in sorted(callers, key=self._cpu_s.__getitem__):
            if turn and took_s + self._cpu_s[item] > TESTS_CPU_S_MAX:
                yield turn
                took_s, turn = 0.0, []
            took_s += self._cpu_s[item]
            turn.append(item)
        yield turn


def _run(
    session: pytest.Session, deletion: Deletion, function: FunctionType, tests: list[pytest.Item]
) -> int:
    """Run *tests* without the statement; return 1 as soon as one fails."""
    try:
        codes = _codes(deletion.file, _Deleting(deletion))
        function.__code__ = codes[deletion.function, deletion.starts]
        failed = session.testsfailed
        for number, item in enumerate(tests):
            after = tests[number + 1] if number + 1 < len(tests) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if session.testsfailed > failed:
                return 1
    except BaseException:  # noqa: BLE001 - whatever it is, it was noticed
        return 1
    return 0


def _confine(session: pytest.Session, cpu_s: int) -> None:
    """Let this process be quiet, and end if it takes too much."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    session.config.pluginmanager.unregister(name="terminalreporter")
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)


def _ended_badly(child: int) -> bool:
    """Return whether the process fails, or is not done in time; then it is ended."""
    deadline = time.monotonic() + HANGS_S
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status != 0
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return True
        time.sleep(0.002)


def _say(what: str) -> None:
    assert sys.__stdout__ is not None
    print(what, file=sys.__stdout__, flush=True)


def _chosen(asked: Sequence[str], every: int) -> dict[str, list[Deletion]]:
    """Return what to delete of the modules and rooms *asked*, by room: every n-th statement."""
    chosen: dict[str, list[Deletion]] = {}
    for one in asked:
        room = next((each for each in ROOMS if one == each or one.startswith(f"{each}/")), None)
        if room is None:
            raise SystemExit(f"{one} is in no room; known are {', '.join(ROOMS)}")
        path = ROOT / one
        files = sorted(path.glob("*.py")) if path.is_dir() else [path]
        found = [each for file in files for each in deletions(str(file.relative_to(ROOT)))]
        chosen.setdefault(room, []).extend(found[::every])
    return chosen


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.deletion")
    parser.add_argument("modules", nargs="*", default=list(ROOMS), metavar="MODULE")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="instead of those of the room")
    parser.add_argument("--every", type=int, default=1, help="only every n-th statement")
    options = parser.parse_args(arguments)
    bad = 0
    for room, chosen in _chosen(options.modules, options.every).items():
        began, deleter = time.monotonic(), Deleter(chosen)
        tests = [str(ROOT / each) for each in options.tests or ROOMS[room]]
        status = pytest.main(["-q", "--quick", "-p", "no:cacheprovider", *tests], plugins=[deleter])
        survivors = deleter.survivors
        judged = sum(each.key in JUDGED for each in survivors)
        bad += len(survivors) - judged + (status not in {0, 1})
        _say(
            f"{room}: {len(chosen)} statements, {len(survivors)} not missed, of them {judged} "
            f"judged; {time.monotonic() - began:.0f} s"
        )
        for test in deleter.failing:
            _say(f"without any deletion this fails: {test}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
