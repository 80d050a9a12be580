"""The page of all commands with all their options, from the commands themselves."""

import re
from collections.abc import Iterator
from enum import EnumType
from typing import Any, Final

from typer.main import get_command

from dlog.cli.app import app
from dlog.cli.commands import DeclaredCommand
from docs.site.markdown import code, table

_HEAD = """\
# Commands and options

Made of the commands themselves; `dlog COMMAND --help` says the same at a terminal. What holds for
all of them, and which to use when, is in [the command line](cli.md). Every command has `--help`.
"""
_KINDS: Final = {str: "TEXT", int: "NUMBER", float: "NUMBER"}


def page() -> str:
    """Return the page."""
    return _HEAD + "".join(f"\n{section}" for section in _sections("dlog", get_command(app)))


def _sections(name: str, command: Any) -> Iterator[str]:
    if command.hidden:
        return
    yield (
        f"## `{name}`\n\n{_text(command.help)}\n{_parameters(command)}{_examples(command.epilog)}"
        f"{_more(command)}"
    )
    for word, each in getattr(command, "commands", {}).items():
        yield from _sections(f"{name} {word}", each)


def _text(given: str | None) -> str:
    """Return help as Markdown; what looks like markup in it is none."""
    return re.sub(r"([<*_\[\]])", r"\\\1", (given or "").replace("\b", "")).strip() + "\n"


def _more(command: Any) -> str:
    """Return a link to the section of the documents that has the command."""
    if not isinstance(command, DeclaredCommand):
        return ""
    page, _, heading = command.documented.partition("#")
    return f"\nMore: [{heading.replace('-', ' ')}]({page}.md#{heading}).\n"


def _parameters(command: Any) -> str:
    rows = [_row(each) for each in command.params if not getattr(each, "hidden", False)]
    rows = [row for row in rows if row[0] != "`--help`, `-h`"]
    if not rows:
        return ""
    return "\n" + table(("option", "value", "default", "what it says"), rows)


def _row(param: Any) -> tuple[str, str, str, str]:
    is_option = param.param_type_name == "option"
    flags = (*param.opts, *param.secondary_opts) if is_option else (param.metavar or param.name,)
    value = "" if getattr(param, "is_flag", False) or not is_option else _value(param)
    says = _text(getattr(param, "help", "") or "").strip()
    if variable := getattr(param, "envvar", None):
        says += f" (environment: `{variable}`)"
    if getattr(param, "multiple", False) or param.nargs == -1:
        says += " May be given several times."
    if param.required:
        says += " Required."
    return ", ".join(map(code, flags)), value, _default(param), says


def _value(param: Any) -> str:
    kind = param.type_descriptor.annotation
    choices = ""
    if isinstance(kind, EnumType):
        choices = "|".join(str(each.value) for each in list[Any](kind))
    shown = param.metavar or choices or _KINDS.get(kind, kind.__name__.upper())
    bounds = [
        f"{word} {bound}"
        for word, bound in (("from", param.min), ("up to", param.max))
        if bound is not None
    ]
    return " ".join([code(shown), *bounds])


def _default(param: Any) -> str:
    default = param.default
    if default is None or callable(default) or default in ((), [], "") or param.required:
        return ""
    if isinstance(default, bool):
        return "on" if default else ""
    return code(getattr(default, "value", default))


def _examples(epilog: str | None) -> str:
    about, _, lines = (epilog or "").partition("Examples:")
    examples = "\n".join(line.strip() for line in lines.splitlines() if line.strip())
    said = f"\n{_text(about)}" if about.strip() else ""
    return said + (f"\n```sh\n{examples}\n```\n" if examples else "")
