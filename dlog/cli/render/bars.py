"""A bar on stderr while a person waits for long work, and nothing if nobody looks there."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int, int | None, str], None]
"""Called with how much is done, how much there is (None: not known), and a few words."""


@contextmanager
def shown_bar(what: str) -> Iterator[Advance]:
    """Yield what to call with how far *what* is; the bar is gone when the block ends."""
    if not sys.stderr.isatty():
        yield lambda _done, _total, _words: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[words]}"),
        TimeElapsedColumn(),
    )
    # Lines of a result go above the bar, if both are seen; a file of results gets only them.
    console, above = Console(stderr=True), sys.stdout.isatty()
    with Progress(*columns, console=console, transient=True, redirect_stdout=above) as progress:
        task = progress.add_task(what, total=None, words="")

        def advance(done: int, total: int | None, words: str) -> None:
            progress.update(task, completed=done, total=total or None, words=words)

        yield advance
