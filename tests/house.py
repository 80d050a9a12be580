"""Counts the house: `python -m tests.house`. `make check` runs it.

Prints how many files and lines there are, which modules are named by participles, and which public
class names exist twice in a package. Fails if there is more of any than `LIMITS` and the lists
below allow: they only ever shrink.
"""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
FLOORS: Final = ("ledger", "bookie", "leader", "dlog")
LIMITS: Final = {
    "product files": 605,
    "product lines": 92_500,
    "test lines": 129_000,
    "class names twice in a package": 52,
}
PARTICIPLE: Final = re.compile(r"(ing|ed)$|^(seen|known|shown|made)$")
NOUNS: Final = frozenset({"framing", "keyring", "testing"})
"""Terms of the field that end like participles."""
NOT_YET: Final = frozenset(
    {
        "bookie/collector/collected.py",
        "dlog/cli/bookie/leaving.py",
        "dlog/cli/bookie/operating.py",
        "dlog/cli/bookie/rebalancing.py",
        "dlog/cli/bookie/recovering.py",
        "dlog/cli/bookie/replacing.py",
        "dlog/cli/bundling/gathering.py",
        "dlog/cli/bundling/redacting.py",
        "dlog/cli/completing.py",
        "dlog/cli/log/checking.py",
        "dlog/cli/log/formatting.py",
        "dlog/cli/log/incoming.py",
        "dlog/cli/log/listing.py",
        "dlog/cli/log/looking.py",
        "dlog/cli/log/shown.py",
        "dlog/cli/log/tailing.py",
        "dlog/cli/log/tracing.py",
        "dlog/cli/log/truncating.py",
        "dlog/cli/parsing.py",
        "dlog/cli/recording.py",
        "dlog/console/changing.py",
        "dlog/console/drawing.py",
        "dlog/console/gathering.py",
        "dlog/console/guarding.py",
        "dlog/console/reading.py",
        "dlog/console/seen.py",
        "dlog/console/serving.py",
        "dlog/console/streaming.py",
        "dlog/console/views/asked.py",
        "dlog/console/wording.py",
        "dlog/health/asking.py",
        "dlog/health/gathering.py",
        "dlog/health/tracing.py",
        "dlog/spark/consuming.py",
        "dlog/spark/joining.py",
        "dlog/spark/sink/keeper/holding.py",
        "dlog/spark/sink/keeper/opening.py",
        "dlog/spark/sink/staging.py",
        "dlog/spark/streaming.py",
        "dlog/spark/watching.py",
        "ledger/protocol/shared.py",
    }
)
"""Modules that are still to be named."""


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
    counts = Counter(
        {
            "product files": len(product),
            "product lines": lines_of(product),
            "test lines": lines_of(tests),
            "class names twice in a package": len(doubled),
        }
    )
    wrong = []
    for what, count in counts.items():
        print(f"house: {count:7,} {what} (at most {LIMITS[what]:,})")
        if count > LIMITS[what]:
            wrong.append(f"{what}: {count:,} are more than {LIMITS[what]:,}")
    print(f"house: {len(named):7,} modules named by participles (at most {len(NOT_YET)})")
    new = sorted(set(named) - NOT_YET)
    wrong += [f"{path}: a module is named by a noun" for path in new]
    wrong += [f"{path}: no longer to be named: take it off the list" for path in NOT_YET - {*named}]
    if "--names" in sys.argv:
        for name, found in sorted(doubled.items()):
            print(f"{name:40} {', '.join(found)}")
    for line in wrong:
        print(f"house: {line}", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
