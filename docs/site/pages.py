"""Puts together what Sphinx makes the site of: documents, pages made of code, linked sources."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from docs.site import api, commands, errors, settings
from docs.site.menu import FRONT, toctrees

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
GENERATED: Final[dict[str, Callable[[], str]]] = {
    "api": api.page,
    "commands": commands.page,
    "errors": errors.page,
    "settings": settings.page,
}
"""Pages that are made of the code, by name."""

OTHERS: Final = {
    "changelog": ROOT / "CHANGELOG.md",
    "contributing": ROOT / "CONTRIBUTING.md",
}
"""Pages that are not in docs/."""

_LINK: Final = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_FENCES: Final = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)
_DRAWING: Final = re.compile(r"^!\[([^\]]*)\]\((drawings/[\w-]+\.svg)\)$", re.MULTILINE)
_LANGUAGES: Final = {".py": "python", ".json": "json", ".yml": "yaml", ".yaml": "yaml"}
_SHOWN: Final = (".py", ".txt", ".md", ".json", ".yml", ".yaml", ".svg", ".sh", ".toml")


def documents() -> dict[str, Path]:
    """Return the pages that people write, by name."""
    return {path.stem: path for path in sorted(DOCS.glob("*.md"))} | OTHERS


def stage(pages: Path) -> None:
    """Write all that Sphinx reads into *pages*, and remove what was there and is not any more."""
    written = documents()
    clash = written.keys() & GENERATED.keys()
    assert not clash, f"written by hand and made of code: {sorted(clash)}"
    shutil.rmtree(pages, ignore_errors=True)
    pages.mkdir(parents=True)
    linked: dict[str, Path] = {}
    texts = {name: _staged(path, linked) for name, path in written.items()}
    texts |= {name: make() for name, make in GENERATED.items()}
    texts[FRONT] = texts.get(FRONT, "# dlog\n") + "\n" + toctrees(texts)
    while missing := [name for name in linked if name not in texts]:
        for name in missing:
            texts[name] = "".join(_shown(linked[name], linked))
    for name, text in texts.items():
        path = pages / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _staged(path: Path, linked: dict[str, Path]) -> str:
    """Return the document at *path* with its links as they are in the site."""
    home = {each.resolve(): name for name, each in documents().items()}

    def moved(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        if re.match(r"[a-z]+:", target):
            return match[0]
        found = (path.parent / target).resolve()
        if found == ROOT / "README.md":
            return f"{before}{FRONT}.md{after}"
        if found.parent == DOCS and found.stem in GENERATED:
            return f"{before}{found.stem}.md{after}"
        if found in home:
            return f"{before}{home[found]}.md{after}"
        name = "source/" + str(found.relative_to(ROOT)).replace("/", "-")
        linked[name] = found
        return f"{before}{name}.md)"

    parts = _FENCES.split(path.read_text(encoding="utf-8"))
    return "".join(
        part if part.startswith("```") else _LINK.sub(moved, _DRAWING.sub(_drawn, part))
        for part in parts
    )


def _drawn(match: re.Match[str]) -> str:
    """Put a drawing into the page itself, so that it is light or dark as the page is."""
    svg = (DOCS / match[2]).read_text(encoding="utf-8")
    return f'<figure class="drawing" aria-label="{match[1]}">\n{svg.strip()}\n</figure>\n'


def _shown(path: Path, linked: dict[str, Path]) -> Iterator[str]:
    """Yield a page that shows the file at *path*, or all files in it."""
    name = path.relative_to(ROOT)
    if path.suffix == ".md":
        yield "---\norphan: true\n---\n\n" + _staged(path, linked).replace("](", "](../")
        return
    yield f"---\norphan: true\n---\n\n# `{name}`\n"
    for each in sorted(path.iterdir()) if path.is_dir() else [path]:
        if each.suffix in _SHOWN and each.stat().st_size:
            if path.is_dir():
                yield f"\n## `{each.name}`\n"
            yield f"\n````{_LANGUAGES.get(each.suffix, 'text')}\n{each.read_text()}\n````\n"
