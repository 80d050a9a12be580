"""The site has every page, and its generated pages have all that there is in the code.

`make docs` makes the whole of it, with Sphinx, and fails for a dead link; here is what can be
known without."""

import re
import runpy
from pathlib import Path
from re import DOTALL, MULTILINE
from typing import Any

import pytest
from typer.main import get_command

from dlog.cli.app import app
from dlog.installation import formats
from dlog.process_settings import ProcessSettings
from dlog.settings import SETTING_NAMES
from docs.site import api, commands, errors, settings
from docs.site.dead_links import dead_links
from docs.site.docstrings import as_rst
from docs.site.menu import FRONT, MENU, menu
from docs.site.pages import DOCS, GENERATED, documents, stage
from tests.documents.test_citations import anchors, read


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    made = tmp_path_factory.mktemp("pages")
    stage(made)
    return {str(path.relative_to(made)): read(path) for path in made.rglob("*.md")}


def test_every_page_is_in_the_menu_once() -> None:
    names = {*documents(), *GENERATED}
    listed = [name for names in menu(names).values() for name in names]
    assert sorted([*listed, FRONT]) == sorted(names)


def test_a_page_that_the_menu_does_not_name_is_below_more() -> None:
    assert menu(["guide", "a-new-page"])["More"] == ["a-new-page"]


def test_no_name_is_in_the_menu_twice() -> None:
    names = [name for names in MENU.values() for name in names]
    assert len(names) == len(set(names))


def test_nothing_that_is_generated_is_written_by_hand() -> None:
    assert [name for name in GENERATED if (DOCS / f"{name}.md").exists()] == []


@pytest.mark.slow
def test_links_of_the_site_lead_to_its_pages_and_their_headings(pages: dict[str, str]) -> None:
    for page, text in pages.items():
        prose = re.sub(r"^(`{3,}).*?^\1", "", text, flags=DOTALL | MULTILINE)
        for link in re.findall(r"\]\(([^)\s]+)\)", prose):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = str((Path("/") / page).parent.joinpath(name).resolve())[1:] if name else page
            assert target in pages, (page, link)
            assert not anchor or anchor in anchors(pages[target]), (page, link)


def test_every_command_has_its_options_with_what_they_say() -> None:
    page = commands.page().replace("\\|", "|")
    sections = dict(re.findall(r"^## `([^`]+)`\n(.*?)(?=^## |\Z)", page, MULTILINE | DOTALL))
    seen = 0
    for words, command in every_command("dlog", get_command(app)):
        for param in (each for each in command.params if not getattr(each, "hidden", False)):
            if param.name == "help":
                continue
            flags = (
                param.opts if param.param_type_name == "option" else [param.metavar or param.name]
            )
            row = re.search(rf"^\| .*`{re.escape(flags[0])}`.*$", sections[words], MULTILINE)
            assert row, (words, flags)
            assert row[0].strip("| ").rpartition(" | ")[2], f"{words} {flags} says nothing"
            seen += 1
    assert seen > 200


def every_command(words: str, command: Any) -> Any:
    if not command.hidden:
        yield words, command
        for name, each in getattr(command, "commands", {}).items():
            yield from every_command(f"{words} {name}", each)


def test_every_setting_has_what_it_says_and_what_is_allowed() -> None:
    page = settings.page()
    for name in ProcessSettings.model_fields:
        assert re.search(rf"^\| `DLOG_{name.upper()}` \| `{name}` \|.*\w.* \|$", page, MULTILINE), (
            name
        )
    for name in SETTING_NAMES:
        row = re.search(rf"^\| `{name}` \| [^|]*\| [^|]+\| ([^|]+)\| ([^|]+)\|$", page, MULTILINE)
        assert row, f"{name}: no bounds, or nothing said"


@pytest.mark.slow
def test_every_error_says_something() -> None:
    page = errors.page()
    kinds = errors.all_errors()
    assert len(kinds) > 100
    for kind in kinds:
        row = re.search(rf"^\| `{kind.__name__}` \| (yes|no) \| (yes|no) \| (.*)$", page, MULTILINE)
        assert row, kind
        assert row[3].replace("|", "").strip(), f"{kind}: neither a sentence nor a docstring"


@pytest.mark.slow
def test_every_public_name_is_on_the_page_of_the_api() -> None:
    page = api.page()
    for module in api.MODULES:
        names = api.public_names(module)
        assert names, module
        assert f"## `{module}`" in page


def test_the_versions_of_formats_are_those_that_the_page_says() -> None:
    rows = dict(
        re.findall(
            r"^\| ([a-z ]+) \| (\d[^|]*) \| [^|]+ \|$", read(DOCS / "stability.md"), MULTILINE
        )
    )
    for name, version in formats().items():
        assert version in re.findall(r"\b\d\b", rows[name]), name


def test_what_only_looks_like_markup_in_a_docstring_is_text() -> None:
    assert as_rst(["Give *args* or **kwargs, a_ or `b`."]) == [
        r"Give *args* or \*\*kwargs, a\_ or `b`.",
        "",
    ]
    assert as_rst(["Say:", "- one", "- two"]) == ["Say:", "", "- one", "- two", ""]
    assert as_rst(["    x = *y"]) == ["::", "", "    x = *y", ""]


def test_dead_links_are_found_also_those_to_anchors(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="here"></h1><a href="#here"></a><a href="#gone"></a><a href="b.html#there"></a>'
        '<a href="c.html"></a><a href="https://example.org"></a><img src="no.svg">'
    )
    (tmp_path / "b.html").write_text("<p id='elsewhere'></p>")
    dead = [link for _, link in dead_links(tmp_path)]
    assert dead == ["#gone", "b.html#there", "c.html", "no.svg"]


def test_figures_of_the_front_page_are_those_of_the_comparison() -> None:
    row = r"^\| (.* \| .* \| .* \| .* \| .*) \|$"
    header, *rows = re.findall(row, read(DOCS / "index.md"), MULTILINE)
    systems = header.split(" | ")[1:]
    measured = read(DOCS.parent / "benchmarks" / "peers.md")
    figures = [row.split(" | ") for row in rows if not row.startswith("-")]
    assert len(figures) > 4
    for what, _, *medians in figures:
        section = measured.partition(f"\n## {what}\n")[2].partition("\n## ")[0]
        for system, median in zip(systems, medians, strict=True):
            assert f"| {system} | {median} (" in section, (what, system)


def test_an_option_keeps_its_two_dashes_on_the_site() -> None:
    """Sphinx makes a dash of them otherwise: what is copied from the page would not run."""
    assert "D" not in runpy.run_path(str(DOCS / "site" / "conf.py"))["smartquotes_action"]
