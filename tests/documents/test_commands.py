"""Commands of `dlog` that messages, docstrings and documents name exist, with their options."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from dlog.cli.app import app

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
