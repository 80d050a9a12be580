"""``dlog completion``: the scripts that let shells complete what `dlog.cli.names` knows, too."""

from enum import StrEnum
from typing import Annotated

import typer

from dlog.cli.options import examples

EPILOG = examples(
    'eval "$(dlog completion bash)"    # in ~/.bashrc',
    'eval "$(dlog completion zsh)"     # in ~/.zshrc',
    "dlog completion fish > ~/.config/fish/completions/dlog.fish",
)


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the script that lets a shell complete commands, options and names of logs."""
    # What `dlog --show-completion` prints, for any shell and not only the one that runs.
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(
        prog_name="dlog", complete_var="_DLOG_COMPLETE", shell=shell.value
    )
    typer.echo(script)
