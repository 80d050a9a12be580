"""pyproject.toml names what the code imports, and nothing else."""

import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALLED = ("dlog", "ledger", "bookie", "leader")
FLOORS = ("ledger", "bookie", "leader", "dlog")
DEMO = ("dlog/demo/", "dlog/cli/demo.py")
TABLE = ("dlog/arrow", "dlog/archive/table_files.py")
SPARK = ("dlog/spark/", "dlog/local/", *DEMO)
OURS = {*FLOORS, "docs", "examples", "benchmarks", "tests", "_typeshed"}
"""And what a type checker brings along."""
DISTRIBUTIONS = {
    "cyclonedx_py": "cyclonedx-bom",
    "google": "protobuf",
    "kafka": "kafka-python",
    "opentelemetry": "opentelemetry-api",
    "xdist": "pytest-xdist",
}
"""Where a module has another name than what is installed for it."""
RUN_ONLY = {  # commands of the Makefile, plugins of pytest, and what mypy reads
    "build", "gunicorn",
    "grpcio-tools", "import-linter", "mypy", "mypy-protobuf", "pytest-timeout",
    "ruff", "types-protobuf",
    "opentelemetry-sdk",  # modules of the same name as those of its API
}  # fmt: skip
ENCRYPTION = {"dlog/envelope.py", "dlog/encryption/files.py", "dlog/encryption/keyring.py"}
LOADED_BY = {"dlog/testing/plugin.py": {"pytest"}}
"""Modules that only the one who has this distribution ever loads."""


def declared(extra: str | None = None) -> dict[str, Requirement]:
    lines = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    return {canonicalize_name(each.name): each for each in map(Requirement, lines)}


def every_requirement() -> list[Requirement]:
    extras = [None, *PROJECT["optional-dependencies"]]
    return [each for extra in extras for each in declared(extra).values()]


@cache
def modules_of(path: Path) -> frozenset[str]:
    """Return the top-level modules that *path* imports, or looks for by name."""
    return frozenset(named_in(path))


def named_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name.split(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "find_spec":
            literals = (each for each in node.args if isinstance(each, ast.Constant))
            yield from (str(each.value).partition(".")[0] for each in literals)


def imported(*folders: str) -> dict[str, set[str]]:
    """Return the distributions that the modules in *folders* import, and which modules do."""
    users = defaultdict[str, set[str]](set)
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for module in modules_of(path) - sys.stdlib_module_names - OURS:
                name = canonicalize_name(DISTRIBUTIONS.get(module, module))
                users[name].add(path.relative_to(ROOT).as_posix())
    return dict(users)


@pytest.mark.slow
def test_the_product_imports_nothing_that_it_does_not_declare() -> None:
    extras = (None, "spark", "demo", "tls", "console", "encryption", "otel", "kafka", "archive")
    core, spark, demo, tls, console, encryption, otel, kafka, archive = map(declared, extras)
    table, schema = declared("table"), declared("schema")
    undeclared = {
        (name, user)
        for name, users in imported(*FLOORS).items()
        for user in users
        if name not in core
        and not (name in tls and user.startswith(("dlog/tls/", "dlog/cli/demo.py")))
        and not (name in console and user.startswith(("dlog/console/", "dlog/demo/")))
        and not (name in encryption and user in ENCRYPTION)
        and not (name in kafka and user.startswith("dlog/kafka"))
        and not (name in spark and user.startswith(SPARK))
        and not (name in demo and user.startswith(DEMO))
        and not (name in otel and user == "dlog/spans.py")
        and not (name in archive and user == "dlog/archive/object_store.py")
        and not (name in table and user.startswith(TABLE))
        and not (name in schema and user.startswith("dlog/log_schema/"))
        and name not in LOADED_BY.get(user, set())
    }
    assert not undeclared


@pytest.mark.slow
def test_examples_tests_and_benchmarks_import_only_what_is_declared() -> None:
    everything = {canonicalize_name(each.name) for each in every_requirement()}
    assert imported("examples", "benchmarks", "tests").keys() <= everything


@pytest.mark.slow
def test_the_product_imports_everything_that_users_install_for_it() -> None:
    assert declared().keys() <= imported(*FLOORS).keys()
    assert declared("spark").keys() <= imported("dlog").keys()
    assert declared("tls").keys() <= imported("dlog/tls").keys()
    assert declared("console").keys() <= imported("dlog/console").keys()
    assert declared("encryption").keys() <= imported("dlog").keys()
    assert declared("kafka").keys() <= imported("dlog").keys()
    assert declared("otel").keys() <= imported("dlog").keys()
    assert declared("archive").keys() <= imported("dlog/archive").keys()
    assert declared("table").keys() <= imported("dlog/archive").keys()
    assert declared("schema").keys() <= imported("dlog/log_schema").keys()
    assert declared("demo").keys() <= imported("dlog").keys()
    assert declared("dev").keys() - RUN_ONLY <= imported("tests", "examples").keys()


def test_the_wheel_has_every_file_of_the_product_and_no_other() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = [*(f"{floor}*" for floor in INSTALLED), "pyspark_dlog"]
    assert setuptools["packages"]["find"]["include"] == found
    packages = {path.parent for floor in FLOORS for path in (ROOT / floor).rglob("__init__.py")}
    patterns = ("*.py", *setuptools["package-data"]["*"])
    files = [path for floor in FLOORS for path in (ROOT / floor).rglob("*") if path.is_file()]
    for path in (each for each in files if "__pycache__" not in each.parts):
        assert path.parent in packages, f"{path} is in no package"
        assert any(path.match(pattern) for pattern in patterns), f"{path} would be left out"
    for floor in FLOORS:
        assert (ROOT / floor / "py.typed").is_file(), "users' type checkers see none of it"


def test_what_is_packaged_is_there() -> None:
    find = setuptools_find()
    for pattern in find["include"]:
        places = (ROOT / where for where in find["where"])
        assert any(list(place.glob(f"{pattern}/__init__.py")) for place in places), pattern


def test_spark_finds_a_module_of_the_wheel_by_its_name_and_no_other_folder_is_needed() -> None:
    folders: dict[str, str] = {}
    setuptools = import_module("setuptools.config.expand")  # what builds the wheel
    found = setuptools.find_packages(root_dir=ROOT, fill_package_dir=folders, **setuptools_find())
    assert [name for name in found if name.startswith("pyspark_")] == ["pyspark_dlog"]
    assert folders == {"pyspark_dlog": "dlog/spark/discovery/pyspark_dlog"}
    assert not [name for name in found if "discovery" in name]
    assert {name.partition(".")[0] for name in found} == {*INSTALLED, "pyspark_dlog"}


def setuptools_find() -> dict[str, list[str]]:
    text = (ROOT / "pyproject.toml").read_text()
    find: dict[str, list[str]] = tomllib.loads(text)["tool"]["setuptools"]["packages"]["find"]
    return find
