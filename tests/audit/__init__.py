"""What `make audit` makes of what its tools say. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from packaging.utils import canonicalize_name

from tests.pins import Pin

CLEAN: Final = 0
VULNERABLE: Final = 1
UNKNOWN: Final = 2
NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    code: int
    lines: tuple[str, ...]


def verdict(report: Mapping[str, Any] | None, said: str = "") -> Verdict:
    """Judge what pip-audit reports as JSON; None is that there is no report, but what it *said*."""
    if report is None:
        last = said.strip().splitlines()[-1:] or ["it said nothing"]
        return Verdict(UNKNOWN, (f"audit: no advice could be had: {last[0]}",))
    found = [
        f"{each['name']} {each['version']}: {known['id']}"
        + (f", mended in {', '.join(known['fix_versions'])}" if known["fix_versions"] else "")
        for each in report["dependencies"]
        for known in each.get("vulns", ())
    ]
    skipped = [each["name"] for each in report["dependencies"] if "skip_reason" in each]
    unknown = []
    if skipped:
        some = ", ".join(skipped[:NAMED_MAX]) + (", ..." if len(skipped) > NAMED_MAX else "")
        unknown = [
            f"audit: the service had no advice on {len(skipped)} of {len(report['dependencies'])} "
            f"packages ({some}): try again from where it can be reached"
        ]
    if found:
        return Verdict(VULNERABLE, (*found, *unknown, "audit: raise them (make pins UPGRADE=1)"))
    if skipped:
        return Verdict(UNKNOWN, tuple(unknown))
    looked_at = len(report["dependencies"])
    return Verdict(CLEAN, (f"audit: nothing is known against {looked_at} packages",))


def of_the_product(bom: dict[str, Any], pins: Iterable[Pin]) -> dict[str, Any]:
    """Return of the *bom* of a whole environment what is pinned by *pins*, with their hashes."""
    pinned = {(canonicalize_name(pin.name), pin.version): pin.hashes for pin in pins}
    components = []
    for each in bom["components"]:
        hashes = pinned.get((canonicalize_name(each["name"]), each["version"]))
        if hashes is not None:
            more = distribution(each["name"], hashes)
            references = [*each.get("externalReferences", ()), more]
            components.append({**each, "externalReferences": references})
    refs = {each["bom-ref"] for each in components}
    graph = [
        {**each, "dependsOn": [ref for ref in each.get("dependsOn", ()) if ref in refs]}
        for each in bom["dependencies"]
        if each["ref"] in {*refs, bom["metadata"]["component"]["bom-ref"]}
    ]
    return {**bom, "components": components, "dependencies": graph}


def distribution(name: str, hashes: Iterable[str]) -> dict[str, Any]:
    return {
        "type": "distribution",
        "url": f"https://pypi.org/project/{name}/",
        "comment": "one of the files that requirements/ allows",
        "hashes": [{"alg": "SHA-256", "content": each} for each in hashes],
    }


def lacks(bom: Mapping[str, Any], pins: Iterable[Pin]) -> list[str]:
    """Return those *pins* that are not in *bom* as they are pinned."""
    there = {(canonicalize_name(each["name"]), each["version"]) for each in bom["components"]}
    return [str(pin) for pin in pins if (canonicalize_name(pin.name), pin.version) not in there]
