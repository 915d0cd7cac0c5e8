"""`trainop version`, and `trainop completion` for shells."""

from __future__ import annotations

import platform

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

import trainop

_SHELLS = {"bash": BashComplete, "fish": FishComplete, "zsh": ZshComplete}


@click.command("version")
def version_command() -> None:
    """Print the version of trainop, of Python and of the system."""
    system = f"{platform.system().lower()}/{platform.machine()}"
    click.echo(f"trainop {trainop.__version__} (Python {platform.python_version()}, {system})")


@click.command("completion")
@click.argument("shell", type=click.Choice(sorted(_SHELLS)))
@click.pass_context
def completion_command(ctx: click.Context, /, shell: str) -> None:
    """Print the script that completes commands, options and names of runs in SHELL.

    bash: eval "$(trainop completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc; fish: trainop completion fish |
    source in config.fish
    """
    made = _SHELLS[shell](ctx.find_root().command, {}, "trainop", "_TRAINOP_COMPLETE")
    click.echo(made.source_template % made.source_vars())
