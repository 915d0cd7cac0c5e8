"""`trainop submit`: creates jobs in a cluster, those of a Python script, too, and follows one until it has ended."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import click

from trainop.commands.connection import Connection, connect
from trainop.commands.evidence import Collector
from trainop.commands.logs import LogOptions, Logs
from trainop.commands.options import clean, cluster_options, run_command
from trainop.commands.target import JobType, Target, job_types
from trainop.explain.why import State, diagnose
from trainop.run.check import find_jobs
from trainop.run.documents import BadInputError, Document
from trainop.run.readable import describe_refusal
from trainop.run.script import ScriptCommand, find_documents, script_options
from trainop.run.submit import find_resource
from trainop.runtime import (
    AlreadyExistsError,
    ApiError,
    Json,
    NotFoundError,
    PatchKind,
    Resource,
)

WAIT_FOR = 10.0
"""Seconds between two looks at why a job does not run."""


@click.command("submit", cls=ScriptCommand)
@click.argument("files", nargs=-1)
@script_options
@cluster_options
@click.option("-d", "--detach", is_flag=True, help="End when the jobs are created, and do not follow one.")
def submit_command(files: tuple[str, ...], *, detach: bool, **options: Any) -> None:
    """Create the jobs in FILES in a cluster, and follow the logs if it is one job.

    FILES are those of `trainop run`. Or the first is a Python script, of which a job is made, and its arguments follow
    --: trainop submit train.py --image IMAGE --nproc 4 -- --epochs 3

    Exit code: 0 if the job has succeeded, or with --detach is created; 1 if it has failed, 2 for invalid input. Ctrl-C
    ends the command, and the job goes on.
    """
    cluster = {name: options.pop(name) for name in ("kubeconfig", "context", "namespace")}

    async def work() -> int:
        documents, script = find_documents(files, options)
        if script is not None and not script.image:
            raise BadInputError("--image is missing; expected an image of the cluster that can run the script")
        find_jobs(documents)
        async with connect(cluster["kubeconfig"], cluster["context"]) as connection:
            submission = Submission(connection, cluster["namespace"], owned=script is not None)
            return await submission.run(documents, detach=detach)

    try:
        run_command(work())
    except BadInputError as error:
        click.echo(str(error), err=True)
        sys.exit(2)


@dataclass(frozen=True, slots=True)
class Submission:
    """One call of the command. `owned`: the job owns the other objects, which are deleted with it."""

    connection: Connection
    namespace: str | None
    owned: bool

    async def run(self, documents: Sequence[Document], *, detach: bool) -> int:
        """Returns the exit code. Raises `BadInputError` for what the API server refuses."""
        types = {(each.resource.group, each.resource.kind): each for each in job_types()}
        jobs: list[Target] = []
        others: list[tuple[Document, Resource]] = []
        for document in documents:
            self._check_namespace(document)
            resource = await find_resource(self.connection.client, document)
            job_type = types.get((resource.group, resource.kind))
            if job_type is not None:
                jobs.append(await self._create(document, resource, job_type))
            elif self.owned:
                others.append((document, resource))
            else:
                await self._apply(document, resource, {})
        for document, resource in others:
            try:
                await self._apply(document, resource, {"ownerReferences": [_owner(jobs[0])]})
            except (BadInputError, ConnectionError, TimeoutError):
                await self._take_back(jobs[0])  # its pods would wait for the object for ever
                raise
        if detach or len(jobs) != 1:
            for job in jobs:
                click.echo(f"trainop logs -f {_name(job)}")
            return 0
        return await self._follow(jobs[0])

    def _check_namespace(self, document: Document) -> None:
        given = document.raw["metadata"].get("namespace")
        if given and self.namespace and given != self.namespace:
            text = f"metadata.namespace: is {given}, and -n is {self.namespace}; leave one out"
            raise BadInputError(document.complain(text))

    def _place(self, document: Document, resource: Resource) -> str | None:
        given = document.raw["metadata"].get("namespace") or self.namespace or self.connection.namespace
        return str(given) if resource.namespaced else None

    async def _create(self, document: Document, resource: Resource, job_type: JobType) -> Target:
        namespace, name = self._place(document, resource), document.key.name
        try:
            raw = await self.connection.client.create(resource, document.raw, namespace=namespace, warned=_warn)
        except AlreadyExistsError:
            text = f"metadata.name: {resource.kind} {name} exists already in namespace {namespace}"
            advice = f"choose another name, or: kubectl -n {namespace} delete {resource.plural}.{resource.group} {name}"
            raise BadInputError(document.complain(f"{text}; {advice}")) from None
        except ApiError as error:
            raise _refused(document, error) from error
        click.echo(f"{resource.kind} {name} created in namespace {namespace}")
        return Target(job_type, raw)

    async def _apply(self, document: Document, resource: Resource, metadata: Json) -> None:
        namespace, name = self._place(document, resource), document.key.name
        body = {**document.raw, "metadata": {**document.raw["metadata"], **metadata}}
        try:
            await self.connection.client.patch(resource, name, namespace, body, kind=PatchKind.APPLY)
        except ApiError as error:
            raise _refused(document, error) from error
        click.echo(f"{resource.kind} {name} applied")

    async def _take_back(self, job: Target) -> None:
        resource = job.type.resource
        try:
            await self.connection.client.delete(resource, job.name, job.namespace, uid=job.raw["metadata"]["uid"])
        except (ApiError, ConnectionError, TimeoutError):
            command = f"kubectl -n {job.namespace} delete {resource.plural}.{resource.group} {job.name}"
            click.echo(f"--- {job.title} lacks what follows, and could not be deleted: {command}", err=True)
        else:
            click.echo(f"--- {job.title} deleted again, as it lacks what follows", err=True)

    async def _follow(self, job: Target) -> int:
        waiting = asyncio.create_task(self._say_why(job))
        try:
            await Logs(self.connection, job, LogOptions()).show(follow=True)
        except asyncio.CancelledError:
            click.echo(f"--- {job.title} goes on: trainop logs -f {_name(job)}", err=True)
            raise
        finally:
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
        return await self._end(job)

    async def _say_why(self, job: Target) -> None:
        """Tells, whenever it is another cause, why the job does not run."""
        said = ""
        while True:
            await asyncio.sleep(WAIT_FOR)
            with suppress(ApiError, ConnectionError, TimeoutError):
                found = diagnose(await Collector(self.connection, await self._read(job)).collect())
                text = clean(found.causes[0].text)
                if found.state in {State.WAITING, State.TROUBLED} and text != said:
                    said = text
                    click.echo(f"--- {job.title} {found.state.value}: {text}", err=True)

    async def _read(self, job: Target) -> Target:
        resource = job.type.resource
        return Target(job.type, await self.connection.client.get(resource, job.name, job.namespace))

    async def _end(self, job: Target) -> int:
        try:
            found = diagnose(await Collector(self.connection, await self._read(job)).collect())
        except NotFoundError:
            click.echo(f"--- {job.title} was deleted", err=True)
            return 1
        click.echo(f"--- {job.title} {found.state.value}: {clean(found.causes[0].text)}", err=True)
        if found.state is State.FAILED:
            click.echo(f"--- more: trainop why {_name(job)}; trainop logs {_name(job)}", err=True)
        return 0 if found.state is State.SUCCEEDED else 1


def _warn(text: str) -> None:
    click.echo(f"--- warning: {clean(text)}", err=True)


def _name(job: Target) -> str:
    return f"-n {job.namespace} {job.type.resource.kind.lower()}/{job.name}"


def _owner(job: Target) -> Json:
    metadata, resource = job.raw["metadata"], job.type.resource
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
    }


def _refused(document: Document, error: ApiError) -> BadInputError:
    return BadInputError("\n".join(map(document.complain, describe_refusal(error))))
