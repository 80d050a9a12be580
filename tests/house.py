"""Counts the house: `python -m tests.house`. `make check` runs it.

Prints how many files and lines there are, and how many public class names exist twice in a package;
`--names` says which. Fails if there is more of any than `LIMITS` allow, which shrink unless a new
subject comes, or if a module is named by a participle: a noun is found again.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
FLOORS: Final = ("ledger", "bookie", "leader", "dlog")
LIMITS: Final = {
    "product files": 536,
    "product lines": 117_680,
    "test lines": 151_400,
    "class names twice in a package": 9,
}
PARTICIPLE: Final = re.compile(r"(ing|ed)$|^(seen|known|shown|made)$")
NOUNS: Final = frozenset({"framing", "keyring", "staging", "testing", "wording"})
"""Terms of the field that end like participles."""


def sources(*folders: str) -> list[Path]:
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    return [path for path in paths if not path.stem.endswith("_pb2")]


def lines_of(paths: list[Path]) -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def participles(paths: list[Path]) -> list[str]:
    named = (
        str(path.relative_to(ROOT))
        for path in paths
        if PARTICIPLE.search(path.stem) and path.stem not in NOUNS
    )
    return sorted(named)


def public_classes(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def twice(paths: list[Path]) -> dict[str, list[str]]:
    """Return the public class names that are defined more than once in a floor, with where."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in paths:
        place = str(path.relative_to(ROOT))
        for name in public_classes(path):
            places[place.split("/", maxsplit=1)[0], name].append(place)
    return {f"{floor}: {name}": found for (floor, name), found in places.items() if len(found) > 1}


def main() -> int:
    product, tests = sources(*FLOORS), sources("tests")
    doubled, named = twice(product), participles(product)
    counts = {
        "product files": len(product),
        "product lines": lines_of(product),
        "test lines": lines_of(tests),
        "class names twice in a package": len(doubled),
    }
    wrong = []
    for what, count in counts.items():
        print(f"house: {count:7,} {what} (at most {LIMITS[what]:,})")
        if count > LIMITS[what]:
            wrong.append(f"{what}: {count:,} are more than {LIMITS[what]:,}")
    wrong += [f"{path}: a module is named by a noun" for path in named]
    if "--names" in sys.argv:
        for name, found in sorted(doubled.items()):
            print(f"{name:40} {', '.join(found)}")
    for line in wrong:
        print(f"house: {line}", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
