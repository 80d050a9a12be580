"""Links of finished pages that lead nowhere, anchors included. Nothing is fetched."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, _: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors.update(name for key in ("id", "name") if (name := given.get(key)))
        self.links += [link for key in ("href", "src") if (link := given.get(key))]


def dead_links(html: Path) -> list[tuple[str, str]]:
    """Return page and link for each link between files below *html* that leads nowhere."""
    pages = {path: _read(path) for path in sorted(html.rglob("*.html"))}
    return [
        (str(path.relative_to(html)), link)
        for path, page in pages.items()
        for link in page.links
        if not _lives(path, link, pages)
    ]


def _lives(page: Path, link: str, pages: dict[Path, _Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return False
    anchor = unquote(parts.fragment)
    return not anchor or target not in pages or anchor in pages[target].anchors


def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page
