"""`trainop check`: what is wrong with the jobs in files, and what will hurt."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from trainop.commands.cluster_check import check_cluster
from trainop.commands.connection import connect
from trainop.commands.options import clean, print_lines, run_command
from trainop.commands.plan import PlannedJob, plan_jobs, read_options
from trainop.explain.launching import find_contradictions, find_missing_here
from trainop.run.check import Job, find_jobs
from trainop.run.commands import ensure_standard_streams, refuse
from trainop.run.documents import BadInputError, Document, read


@click.command("check")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--local", is_flag=True, help="Also warn about what `trainop run` would not find on this machine.")
@click.option("--context", help="Also check what the cluster of this context of the kubeconfig lacks.")
@click.option("--kubeconfig", help="Also check what the cluster of this kubeconfig lacks. Default: as kubectl.")
@click.option("-n", "--namespace", help="The namespace of jobs that name none. Default: that of the context.")
@click.option("--operator-flags", default="", metavar="FLAGS", help="Flags of the operator, in one argument.")
def check_command(files: tuple[Path, ...], local: bool, operator_flags: str, **cluster: str | None) -> None:
    """Check the jobs in FILES without running anything.

    FILES are as in `trainop run`. Finds what the operator and the CRDs refuse, and every field that Kubernetes would
    drop, also in pod templates. Each error is one line, FILE:LINE:COLUMN: error: FIELD: what is wrong; a missing field
    is reported at the object that lacks it. Launch commands that contradict the kind of job are warnings.

    With --context or --kubeconfig, also asks that cluster, as a dry run and with your own rights, for what the jobs
    need: their CRD, admission, nodes that fit, quotas, limits, queues, and all objects that their pods name.

    Exit code: 0 if all jobs are valid, with or without warnings; 1 if the cluster lacks something or cannot be asked;
    2 for invalid jobs.
    """
    ensure_standard_streams()
    try:
        options = read_options(operator_flags)
        documents = read(files)
        jobs = find_jobs(documents)
    except BadInputError as error:
        sys.exit(refuse(error))
    except KeyboardInterrupt:  # while it reads standard input
        sys.exit(128 + signal.SIGINT)
    _print(find_warnings(jobs, local=local))
    print_lines(f"{document.where}: {document.kind} {document.key.name} is valid" for document, _ in jobs)
    if cluster["context"] or cluster["kubeconfig"]:
        run_command(_ask_cluster(plan_jobs(jobs, options), documents, **cluster))


async def _ask_cluster(
    jobs: Sequence[PlannedJob],
    documents: Sequence[Document],
    context: str | None,
    kubeconfig: str | None,
    namespace: str | None,
) -> int:
    async with connect(kubeconfig, context) as connection:
        found = await check_cluster(connection, jobs, documents, namespace)
    _print(each.document.complain(each.text, each.severity) for each in found)
    return int(any(each.severity == "error" for each in found))


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(clean(line), err=True)


def find_warnings(jobs: Sequence[Job], *, local: bool) -> Iterator[str]:
    """The lines about what the jobs' own manifests show."""
    for document, _ in jobs:
        found = [*find_contradictions(document.raw)]
        if local:
            found += find_missing_here(document.raw, _is_command, _is_file)
        yield from (document.complain(each, "warning") for each in dict.fromkeys(found))


def _is_command(name: str, folder: str) -> bool:
    if "/" in name:
        return os.access(Path(folder) / name, os.X_OK)
    return shutil.which(name) is not None


def _is_file(name: str, folder: str) -> bool:
    return (Path(folder) / name).exists()
