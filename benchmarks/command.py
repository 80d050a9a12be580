"""The command lines of benchmarks with sections: what they share of reading and of printing."""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.figures import print_table
from benchmarks.results import Results, keep


def parser_of(name: str, doc: str | None, sections: Iterable[str]) -> argparse.ArgumentParser:
    """Return a parser of `python -m benchmarks.`*name* with the options of all."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kept = Path("build") / f"bench-{name}.json"
    add = parser.add_argument
    add("--only", choices=list(sections), action="append", help="not all sections, but this one")
    add("--dir", type=Path, default=Path("build"), help="on the disk to be measured")
    add("--json", type=Path, default=kept, help="where to keep it")
    add("--quick", action="store_true", help="very little of each, to see that it works")
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return what was asked for; the directory to be measured is there then."""
    options = parser.parse_args()
    options.dir = options.dir.absolute()
    options.dir.mkdir(parents=True, exist_ok=True)
    return options


def tell(results: Results, sizes: Mapping[str, object], path: Path) -> None:
    """Print *results* and keep them at *path*."""
    print_table(results.figures)
    keep(results.figures, sizes, path)
