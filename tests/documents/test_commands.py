"""Commands of `dlog` that messages, docstrings and documents name exist, with their options."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from dlog.cli.app import app
from dlog.cli.commands import DeclaredCommand

ROOT = Path(__file__).parents[2]
COMMAND = r"dlog((?: +[\w.,:/=-]+(?:\|[\w-]+)*)+)"
QUOTED = re.compile(rf"(?<=[`'\"]){COMMAND}")
AT_A_SHELL = re.compile(rf"^ *(?:\.venv/bin/)?{COMMAND}", re.MULTILINE)
DLOG: Any = get_command(app)
NO_COMMANDS = (" access", " mac", " for asyncio:")
"""What looks like one and is none: labels of keys, docstrings."""


def texts() -> Iterator[tuple[str, str]]:
    """Yield path and text of what speaks to users: the product's code and the documents."""
    folders = ("bookie", "dlog", "docs", "leader", "ledger")
    paths = [*ROOT.glob("*.md"), *(path for name in folders for path in (ROOT / name).rglob("*"))]
    for path in sorted(paths):
        if path.suffix in (".py", ".md"):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def named(path: str, text: str) -> Iterator[str]:
    """Yield the command lines of `dlog` behind a quote, and those that a document shows."""
    yield from QUOTED.findall(text)
    if path.endswith(".md"):
        for block in re.findall(r"```sh\n.*?```|(?:^    .*\n)+", text, re.DOTALL | re.MULTILINE):
            lines = re.sub(r'"[^"]*"', "TEXT", block.replace("\\\n", " "))
            yield from AT_A_SHELL.findall(lines)


def unknown(words: list[str]) -> str:
    """Return the first word of a command line that `dlog` would not know, or nothing."""
    at = DLOG
    for word in words:
        if word.startswith("-"):
            names = {name for param in at.params for name in (*param.opts, *param.secondary_opts)}
            if not names >= set(re.findall(r"-[\w-]+", word.split("=")[0])) - {"--help"}:
                return word
        elif hasattr(at, "commands") and word not in ("COMMAND", "..."):
            if not at.commands.keys() >= set(word.split("|")):
                return word
            at = at.commands[word.split("|")[0]]
    return ""


def test_every_command_that_a_message_or_a_document_names_exists() -> None:
    lines = [(path, line) for path, text in texts() for line in named(path, text)]
    assert len(lines) > 200
    wrong = [
        (path, line, word)
        for path, line in lines
        if not line.startswith(NO_COMMANDS) and (word := unknown(line.split()))
    ]
    assert wrong == []


def defined(command: Any, words: str = "") -> Iterator[tuple[str, DeclaredCommand]]:
    """Yield each command of the program, and the words that name it."""
    if isinstance(command, DeclaredCommand):
        yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from defined(inner, f"{words} {name}".strip())


def section(page: str, anchor: str) -> str:
    """Return what stands below a heading of a document; nothing if there is no such heading."""
    lines: list[str] = []
    level, is_code = 0, False
    for line in (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").splitlines():
        is_code ^= line.startswith("```")
        heading = None if is_code else re.match(r"(#+) (.*)", line)
        if heading and level and len(heading[1]) <= level:
            break
        if heading and re.sub(r"[^\w -]", "", heading[2].lower()).replace(" ", "-") == anchor:
            level = len(heading[1])
        if level:
            lines.append(line)
    return "\n".join(lines)


def test_every_command_stands_where_it_says_in_the_documents() -> None:
    commands = dict(defined(DLOG))
    assert len(commands) > 80
    missing = [
        (words, command.documented)
        for words, command in commands.items()
        if f"dlog {words}" not in section(*command.documented.split("#"))
    ]
    assert missing == []
