"""Which pages the site has, in which order. A document that nothing here names is under "More"."""

from collections.abc import Iterable
from typing import Final

MENU: Final[dict[str, tuple[str, ...]]] = {
    "Begin": ("tutorial",),
    "Guides": (
        "guide", "writing", "reading", "keeping", "archive", "tables", "schemas", "web", "spark",
        "kafka", "ledgers", "operations", "console", "deploy", "rest", "security", "upgrading",
    ),
    "How it works": (
        "architecture", "protocol", "bookie", "glossary", "rules", "decisions", "testing",
    ),
    "Reference": (
        "api", "cli", "commands", "settings", "metrics", "errors", "formats", "formats-log",
        "stability",
    ),
    "Beside others": ("comparison", "reliability", "ancestor"),
    "The project": ("changelog", "contributing"),
}  # fmt: skip
"""Names of pages by heading. One that does not exist (yet) is left out."""

FRONT: Final = "index"


def menu(pages: Iterable[str]) -> dict[str, list[str]]:
    """Return headings with those of *pages* that are under each, every page once."""
    there = set(pages) - {FRONT}
    made = {heading: [name for name in names if name in there] for heading, names in MENU.items()}
    made["More"] = sorted(there - {name for names in MENU.values() for name in names})
    return {heading: names for heading, names in made.items() if names}


def toctrees(pages: Iterable[str]) -> str:
    """Return the menu as Sphinx reads it, to stand at the end of the front page."""
    trees = (
        "\n".join(["```{toctree}", ":hidden:", f":caption: {heading}", "", *names, "```"])
        for heading, names in menu(pages).items()
    )
    return "\n\n".join(trees) + "\n"
