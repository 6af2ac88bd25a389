"""Groups of commands, with errors in one line and help in whole sentences."""

from typing import Any

import typer
from typer.core import TyperGroup

from acclimate.cli.console import say
from acclimate.errors import AcclimateError, RunError, printable, reason

UsageError: Any = typer.BadParameter.__base__  # wherever this version of typer has it


class CommandGroup(TyperGroup):
    """A group of commands that shows errors that a user can cause as one line, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit with 1 if it had to stop, with 2 if it could not start."""
        try:
            return super().invoke(ctx)
        except AcclimateError as error:
            say(f"error: {error}", err=True)
            raise typer.Exit(1 if isinstance(error, RunError) else 2) from error
        except UsageError as error:  # wrong arguments, which may be names of files that a shell filled in
            error.message = printable(error.message)
            raise
        except OSError as error:  # a name that is too long, a folder that may not be entered
            if error.filename is None:
                raise
            say(f"error: {error.filename} cannot be used: {reason(error)}.", err=True)
            raise typer.Exit(1) from error

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands, each with the whole first sentence of its help, which would else be cut to one line."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(500)) for name, command in commands if command])
