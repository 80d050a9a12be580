"""Puts one small bug at a time into a function and shows which bugs no test notices.

    python -m tests.mutants ledger/protocol bookie/autorecovery/protocol/repair_plan.py
    python -m tests.mutants dlog/aio/read/consumer.py --tests tests/dlog/aio/test_aio_consumer.py

Kinds of bugs (`--kinds`): a statement is deleted; a condition is negated; a comparison is off by
one, or says the opposite; `and` becomes `or`; a number is one more; True becomes False.

The tests of a room are collected once, in one warm process; each bug is a fork of it, in which
the function has it, and which runs the tests that call that function, the quickest first, until
one fails. So a bug takes a tenth of a second, not the start of a pytest. A bug that lives is a test
that is missing, or code that is not needed: what was judged stands in `tests.mutants.survivors`,
and any other survivor makes the exit status 1.

Left alone: docstrings, assertions (they state what is true anyway), imports, definitions, and what
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
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, TypeVar

import pytest

from tests.mutants.survivors import JUDGED

ROOT: Final = Path(__file__).parents[2]
JUDGED_ROOMS: Final = {
    "ledger/protocol": ("tests/ledger/protocol",),
    "bookie/autorecovery/protocol": ("tests/bookie/autorecovery",),
    "bookie/loss": (
        "tests/bookie/loss",
        "tests/bookie/storage",
        "tests/bookie/identity/test_restore.py",
    ),
    "bookie/identity": ("tests/bookie/identity",),
}
"""Which tests know a room: of these the quick ones. What survives a deletion is judged."""
ROOMS: Final = {
    **JUDGED_ROOMS,
    "bookie": ("tests/bookie",),
    "bookie/autorecovery": ("tests/bookie/autorecovery",),
    "bookie/server": ("tests/bookie/server",),
    "bookie/storage": ("tests/bookie/storage",),
    "dlog": ("tests/dlog",),
    "dlog/aio": ("tests/dlog/aio",),
    "dlog/protocol": ("tests/dlog/protocol", "tests/dlog/aio"),
    "leader": ("tests/leader",),
    "ledger": ("tests/ledger",),
}
_BOUNDS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_OTHERS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    **_BOUNDS,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
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


class Kind(StrEnum):
    DELETE = "delete"
    NEGATE = "negate"
    COMPARE = "compare"
    CONNECT = "connect"
    NUMBER = "number"
    TRUTH = "truth"


@dataclass(frozen=True, slots=True)
class Mutation:
    """A bug in a function, in what stands at *place* of *file*."""

    kind: Kind
    file: str
    function: str
    """The outermost one, as the code names it."""
    starts: int
    """First line of that function, or of its decorators."""
    place: "Place"
    text: str
    """The line in which it begins."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is judged by: the same when lines before it come or go."""
        is_deletion = self.kind is Kind.DELETE
        return self.file, self.function, self.text if is_deletion else f"{self.kind}: {self.text}"


Place = tuple[int, int, int | None, int | None]


def place_of(node: ast.stmt | ast.expr) -> Place:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def mutations(file: str, kinds: Collection[Kind] = tuple(Kind)) -> Iterator[Mutation]:
    """Yield the bugs that can be put into *file*, in order."""
    source = (ROOT / file).read_text()
    lines = source.splitlines()

    def within(node: ast.AST, name: str) -> Iterator[Mutation]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                starts = min([child.lineno, *(each.lineno for each in child.decorator_list)])
                for place, kind in sorted(_places(child), key=lambda found: found[0][:2]):
                    text = lines[place[0] - 1].strip()
                    if kind in kinds:
                        yield Mutation(kind, file, name + child.name, starts, place, text)
            elif isinstance(child, ast.ClassDef):
                yield from within(child, f"{name}{child.name}.")

    yield from within(ast.parse(source), "")


def _places(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[Place, Kind]]:
    waiting: list[ast.AST] = [*function.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Assert | ast.JoinedStr | ast.arguments):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.AnnAssign):
            waiting.remove(node.annotation)
        is_declared = isinstance(node, ast.AnnAssign) and node.value is None
        if isinstance(node, ast.stmt) and not isinstance(node, _KEPT) and not is_declared:
            yield place_of(node), Kind.DELETE
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            if not isinstance(node.test, ast.Constant | ast.BoolOp):
                yield place_of(node.test), Kind.NEGATE
            if isinstance(node.test, ast.Compare) and type(node.test.ops[0]) not in _BOUNDS:
                waiting.remove(node.test)  # its opposite is the negation
                waiting += ast.iter_child_nodes(node.test)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield place_of(node), Kind.COMPARE
        elif isinstance(node, ast.BoolOp):
            yield place_of(node), Kind.CONNECT
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield place_of(node), Kind.TRUTH
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            yield place_of(node), Kind.NUMBER


class _Mutating(ast.NodeTransformer):
    """Puts the bug into the tree of its file."""

    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def visit(self, node: ast.AST) -> Any:
        wanted = ast.stmt if self._mutation.kind is Kind.DELETE else ast.expr
        if isinstance(node, wanted) and place_of(node) == self._mutation.place:
            changed = self._changed(node)
            if changed is not None:
                return ast.copy_location(changed, node)
        return self.generic_visit(node)

    def _changed(self, node: ast.stmt | ast.expr) -> ast.AST | None:
        """Return what stands there instead; None: another node begins and ends there too."""
        match self._mutation.kind, node:
            case Kind.DELETE, _:
                return ast.Pass()
            case Kind.NEGATE, ast.expr():
                return ast.UnaryOp(ast.Not(), node)
            case Kind.COMPARE, ast.Compare(left, [operator], comparators):
                return ast.Compare(left, [_OTHERS[type(operator)]()], comparators)
            case Kind.CONNECT, ast.BoolOp(ast.And(), values):
                return ast.BoolOp(ast.Or(), values)
            case Kind.CONNECT, ast.BoolOp(ast.Or(), values):
                return ast.BoolOp(ast.And(), values)
            case Kind.TRUTH, ast.Constant(bool() as value):
                return ast.Constant(not value)
            case Kind.NUMBER, ast.Constant(int() as value):
                return ast.Constant(value + 1)
            case _:
                return None


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


class Mutator:
    """A plugin of pytest: runs the tests without any bug, then with each."""

    def __init__(self, chosen: Sequence[Mutation]) -> None:
        self.survivors: list[Mutation] = []
        self.failing: list[str] = []
        """Tests that fail without any bug; they say nothing."""
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
        for mutation in self._chosen:
            function = functions.get((mutation.file, mutation.starts))
            if function is None or self._lives(session, mutation, function):
                self.survivors.append(mutation)
                _say(f"{mutation.file}:{mutation.place[0]}: {mutation.function}: {mutation.key[2]}")
        return True

    def _run_all(
        self, session: pytest.Session, functions: dict[tuple[str, int], FunctionType]
    ) -> None:
        """Run all tests without any bug; find out who calls what."""
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

    def _lives(self, session: pytest.Session, mutation: Mutation, function: FunctionType) -> bool:
        for tests in self._turns(mutation):
            cpu_s = HANGS_CPU_S + round(3 * sum(self._cpu_s[item] for item in tests))
            child = os.fork()
            if child == 0:
                _confine(session, cpu_s)
                os._exit(_run(session, mutation, function, tests))
            if _ended_badly(child):
                return False
        return True

    def _turns(self, mutation: Mutation) -> Iterator[list[pytest.Item]]:
        """Yield the tests that call the function, the quickest first, in turns of bounded time."""
        took_s, turn = 0.0, list[pytest.Item]()
        callers = self._calls.get((mutation.file, mutation.starts), ())
        for item in sorted(callers, key=self._cpu_s.__getitem__):
            if turn and took_s + self._cpu_s[item] > TESTS_CPU_S_MAX:
                yield turn
                took_s, turn = 0.0, []
            took_s += self._cpu_s[item]
            turn.append(item)
        yield turn


def _run(
    session: pytest.Session, mutation: Mutation, function: FunctionType, tests: list[pytest.Item]
) -> int:
    """Run *tests* with the bug; return 1 as soon as one fails."""
    try:
        codes = _codes(mutation.file, _Mutating(mutation))
        function.__code__ = codes[mutation.function, mutation.starts]
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


def _chosen(
    asked: Sequence[str], kinds: Collection[Kind], every: int, tests: Sequence[str] | None
) -> dict[tuple[str, ...], list[Mutation]]:
    """Return what to put into the modules and rooms *asked*, by the tests that know them: every
    n-th bug."""
    chosen: dict[tuple[str, ...], list[Mutation]] = {}
    for name in asked:
        path = ROOT / name
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        for file in files:
            module = str(file.relative_to(ROOT))
            room = max(
                (each for each in ROOMS if module.startswith(f"{each}/")), key=len, default=""
            )
            known_by = tuple(tests or ROOMS.get(room, ()))
            if not known_by:
                raise SystemExit(f"{module} is in no room; say by --tests which tests know it")
            chosen.setdefault(known_by, []).extend(mutations(module, kinds))
    return {known_by: found[::every] for known_by, found in chosen.items()}


def outdated(modules: Collection[str]) -> list[tuple[str, str, str]]:
    """Return the judged survivors of *modules* whose statement is not there any more."""
    there = {each.key for module in modules for each in mutations(module)}
    return [key for key in JUDGED if key[0] in modules and key not in there]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("modules", nargs="*", default=list(JUDGED_ROOMS), metavar="MODULE")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="instead of those of the room")
    parser.add_argument("--kinds", nargs="+", type=Kind, choices=list(Kind), default=[Kind.DELETE])
    parser.add_argument("--every", type=int, default=1, help="only every n-th bug")
    options = parser.parse_args(arguments)
    chosen = _chosen(options.modules, options.kinds, options.every, options.tests)
    bad = 0
    for tests, bugs in chosen.items():
        began, mutator = time.monotonic(), Mutator(bugs)
        paths = [str(ROOT / each) for each in tests]
        status = pytest.main(
            ["-q", "--quick", "--wide", "-p", "no:cacheprovider", *paths], plugins=[mutator]
        )
        survivors = mutator.survivors
        judged = sum(each.key in JUDGED for each in survivors)
        bad += len(survivors) - judged + (status not in {0, 1})
        _say(
            f"{' '.join(tests)}: {len(bugs)} bugs, {len(survivors)} not noticed, of them {judged} "
            f"judged; {time.monotonic() - began:.0f} s"
        )
        for test in mutator.failing:
            _say(f"without any bug this fails: {test}")
    modules = {bug.file for bugs in chosen.values() for bug in bugs}
    for file, function, statement in outdated(modules):
        _say(f"judged, and not there any more: {file}: {function}: {statement}")
    return 1 if bad else 0
