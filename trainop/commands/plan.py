"""`trainop plan`: everything that the operator would make of the jobs in a file, without a cluster."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import click
import yaml

from trainop.commands.compare import Named, as_seen, compare, name_objects
from trainop.commands.connection import Connection, connect
from trainop.commands.options import print_lines
from trainop.commands.preview import as_list, describe
from trainop.engine.extensions import MODES
from trainop.engine.kind import Kind
from trainop.engine.seen import Options
from trainop.explain.rehearsal import Made, Rehearsal, rehearse
from trainop.logs import LogSettings, configure_logs
from trainop.programs.flags import HelpRequested, usage
from trainop.programs.schemes import all_kinds
from trainop.programs.settings import FLAGS, read_settings
from trainop.run.check import Job, find_jobs
from trainop.run.documents import BadInputError, Document, read
from trainop.runtime import PODS, SERVICES, ApiError, Json, NotFoundError, Resource

CLUSTER = "cluster"
"""The value of --diff that means the cluster of the kubeconfig."""

SAME, DIFFERENT, TROUBLE = 0, 1, 2
"""Exit codes with --diff, as of diff and kubectl."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job of a file, and what the operator would make of it."""

    document: Document
    kinds: Sequence[Kind]
    found: Rehearsal

    @property
    def resource(self) -> Resource:
        """The kind of job, in the version of the file."""
        return replace(self.kinds[0].resource, version=self.document.api_version.rpartition("/")[2])


@click.command("plan")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Choice(["tree", "yaml", "json"]),
    default="tree",
    show_default=True,
    help="A summary, or complete manifests in the order of creation.",
)
@click.option(
    "--diff",
    metavar="FILE|cluster",
    help="Show the differences to what another file would make, or to the objects that the cluster has. Exit code: 0"
    " without differences, 1 with some, 2 after an error.",
)
@click.option(
    "--operator-flags",
    default="",
    metavar="FLAGS",
    help="Flags of the operator, in one argument, such as '--service-mode=job --gang-scheduler-name=volcano'.",
)
@click.option("--kubeconfig", help="With --diff cluster: the kubeconfig. Default: as kubectl.")
@click.option("--context", help="With --diff cluster: the context of the kubeconfig.")
def plan_command(
    files: tuple[Path, ...], output: str, diff: str | None, operator_flags: str, **cluster: str | None
) -> None:
    """Show everything that the operator would make of the jobs in FILES: pods, services and all other objects.

    No cluster is needed. Objects that wait for others, such as the launcher of an MPIJob, are shown, too.
    """
    try:
        options = read_options(operator_flags)
        planned = plan_files(files, options)
        if diff is None:
            print_lines(render(planned, output, options))
            sys.exit(0)
        if diff == CLUSTER:
            configure_logs(LogSettings(level="error"))
            lines = asyncio.run(_compare_with_cluster(planned, **cluster))
        else:
            before = plan_files([Path(diff)], options)
            lines = list(compare(_objects(before), _objects(planned)))
    except BadInputError as error:
        click.echo(str(error), err=True)
        sys.exit(TROUBLE)
    except (ApiError, OSError) as error:
        click.echo(f"trainop: {error}", err=True)
        sys.exit(TROUBLE)
    print_lines(lines)
    sys.exit(DIFFERENT if lines else SAME)


def read_options(flags: str) -> Options:
    """The settings that plans depend on, from flags of `trainop operator`. Raises `UsageError`, `BadInputError`."""
    try:
        settings, rest = read_settings(shlex.split(flags), {})
    except HelpRequested:
        raise BadInputError(usage("trainop operator", FLAGS)) from None
    except ValueError as error:
        raise BadInputError(f"--operator-flags: {error}") from None
    if rest:
        raise BadInputError(f"--operator-flags: {rest[0]!r} is no flag; expected for example --service-mode=job")
    return settings.options


def plan_files(paths: Iterable[Path], options: Options) -> list[PlannedJob]:
    """Reads the jobs and rehearses each. Raises `BadInputError` for what no cluster would accept."""
    return plan_jobs(find_jobs(read(paths)), options)


def plan_jobs(jobs: Iterable[Job], options: Options) -> list[PlannedJob]:
    """Rehearses each job."""
    now = datetime.now(UTC)
    found = []
    for document, _ in jobs:
        group = document.api_version.rpartition("/")[0]
        kinds = [
            each for each in all_kinds(options) if (each.resource.kind, each.resource.group) == (document.kind, group)
        ]
        found.append(PlannedJob(document, kinds, rehearse(kinds, document.raw, options, now)))
    return found


def render(planned: Sequence[PlannedJob], output: str, options: Options) -> Iterator[str]:
    """The output without --diff."""
    made = [each for job in planned for each in job.found.made]
    if output == "yaml":
        yield yaml.safe_dump_all([each.manifest for each in made], sort_keys=False, width=1000).rstrip("\n")
    elif output == "json":
        yield json.dumps(as_list(made), indent=2)
    else:
        for job in planned:
            key = job.document.key
            yield from describe(job.document.kind, key.name, key.namespace, job.found, _services_by_mode(job, options))


def _services_by_mode(job: PlannedJob, options: Options) -> dict[str, int]:
    """Service mode -> the number of Services that the job would have. Empty for a kind without modes."""
    now = datetime.now(UTC)
    counts = {}
    for mode in MODES:
        found = rehearse(job.kinds, job.document.raw, replace(options, service_mode=mode), now)
        counts[mode] = sum(each.resource == SERVICES for each in found.made)
    return counts


def _objects(planned: Iterable[PlannedJob]) -> dict[tuple[str, str], Json]:
    return name_objects(each for job in planned for each in job.found.made)


# The cluster ----------------------------------------------------------------------------------------------------------


async def _compare_with_cluster(
    planned: Sequence[PlannedJob], kubeconfig: str | None, context: str | None
) -> list[str]:
    lines: list[str] = []
    async with connect(kubeconfig, context) as connection:
        for job in planned:
            lines += compare(await live_objects(connection, job), name_objects(job.found.made))
    return lines


async def live_objects(connection: Connection, job: PlannedJob) -> Named:
    """The objects of the job in the cluster, reduced to the fields that the plan sets. Pods and services are listed
    together, the few others read one by one."""
    client, key, kind = connection.client, job.document.key, job.kinds[0]
    try:
        live_job = await client.get(kind.source, key.name, key.namespace)
    except NotFoundError:
        return {}
    uid = live_job["metadata"]["uid"]
    found: dict[tuple[str, str], Json] = {}
    planned = name_objects(job.found.made)
    for resource in (PODS, SERVICES):
        labels = {name: value for each in job.kinds for name, value in shared_labels(each, key.name)}
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        for item in (await client.list(resource, key.namespace, label_selector=selector)).items:
            name = (resource.kind, item["metadata"]["name"])
            if is_owned(item, uid):
                found[name] = as_seen(item, planned[name], uid) if name in planned else _bare(resource, name[1])
    for each in job.found.made:
        if each.resource not in {PODS, SERVICES} and (other := await _read(connection, each, key.namespace)):
            name = (each.resource.kind, each.name)
            found[name] = as_seen(other, planned[name], uid)
    return found


def shared_labels(kind: Kind, job_name: str) -> Iterator[tuple[str, str]]:
    """The labels of children that all kinds of the resource share."""
    labels = kind.children.labels(kind.controller, job_name)
    return ((name, value) for name, value in labels.items() if name != kind.children.controller_label)


def is_owned(item: Json, uid: str) -> bool:
    """Whether the object has the job of this UID as an owner."""
    return any(owner.get("uid") == uid for owner in item["metadata"].get("ownerReferences") or ())


def _bare(resource: Resource, name: str) -> Json:
    """An object that the plan does not make."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}}


async def _read(connection: Connection, made: Made, namespace: str) -> Json | None:
    try:
        return await connection.client.get(made.resource, made.name, namespace)
    except NotFoundError:
        return None
