"""`acclimate cluster`: the same work on many machines, with Ray."""

import typer

from acclimate.cli.cluster_classify import classify
from acclimate.cli.cluster_serve import serve
from acclimate.cli.group import CommandGroup

cluster = typer.Typer(cls=CommandGroup, help="The same work on many machines, with Ray.", no_args_is_help=True)
cluster.command()(classify)
cluster.command(context_settings={"auto_envvar_prefix": "ACCLIMATE_SERVE"})(serve)
