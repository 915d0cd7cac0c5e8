"""`trainop stacks`: where the Python processes of all replicas stand, the odd one out first."""

from __future__ import annotations

import click

from trainop.commands.jobs import complete_run, open_job
from trainop.commands.options import cluster_options, run_command
from trainop.commands.target import replica_of
from trainop.errors import StartError
from trainop.explain.stacks import render
from trainop.run.dumper import Dumper
from trainop.runtime import PODS


@click.command("stacks")
@click.argument("job", shell_complete=complete_run)
@cluster_options
@click.option("--role", default="", help="Only replicas of this role.")
@click.option("-c", "--container", default="", help="This container. Default: the first of each pod.")
def stacks_command(job: str, role: str, container: str, **cluster: str | None) -> None:
    """Show where the Python processes of JOB stand: their stacks, grouped, the odd one out first.

    Runs py-spy in the pods by exec; where it is missing, sends the signal that the job allows by the variable
    TRAINOP_STACKS_SIGNAL, and reads what faulthandler writes to the log.
    """

    async def show() -> int:
        async with open_job(job, cluster) as (connection, target):
            if connection.now is not None:
                raise StartError(f"run {connection.server} has ended, and its processes with it; see trainop why {job}")
            listing = await connection.client.list(PODS, target.namespace, label_selector=target.pod_selector)
            replicas = [
                replica_of(each) for each in listing.items if (each.get("status") or {}).get("phase") == "Running"
            ]
            replicas = [each for each in replicas if not role or each.role == role.lower()]
            if not replicas:
                click.echo(f"trainop: no running replica of {target.title}; see trainop why {target.name}", err=True)
                return 1
            dumper = Dumper(connection.client, connection.config, container=container)
            processes = await dumper.dump(replicas)
        for line in render(processes):
            click.echo(line)
        return 0 if any(each.frames for each in processes) else 1

    run_command(show())
