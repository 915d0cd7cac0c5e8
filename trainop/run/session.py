"""One session: cluster and operator up, objects applied, jobs followed to their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rich.console import Console

from trainop.engine.crd import crd
from trainop.engine.framework import Framework
from trainop.local.cluster import ClusterOptions, LocalCluster
from trainop.logs import configure_logs
from trainop.operator import FRAMEWORKS, build
from trainop.run.apply import apply, install
from trainop.run.check import jobs_among
from trainop.run.documents import Document, read
from trainop.run.follow import Followed, Follower
from trainop.run.screen import JobView, Screen
from trainop.runtime.cache import Cache
from trainop.settings import LogSettings, Settings


async def run_files(paths: Sequence[Path], options: ClusterOptions, console: Console, *, keep: bool) -> int:
    """The exit code of `trainop run`. Raises `BadInputError` for files that make no sense, before anything starts."""
    documents = read(paths)
    jobs = jobs_among(documents)
    async with _cluster(options) as cluster, _operator(cluster):
        await apply(cluster.client, documents)
        code = await _follow(cluster, jobs, console)
        if keep:
            console.print(f"The cluster stays up until Ctrl-C.\nexport KUBECONFIG={cluster.kubeconfig}", soft_wrap=True)
            await asyncio.Event().wait()
    return code


async def run_cluster(options: ClusterOptions, console: Console, *, with_operator: bool) -> int:
    """Serves until it is cancelled."""
    async with _cluster(options) as cluster:
        console.print(f"# API server {cluster.url}, pods have {_NETWORKS[cluster.node.network]}", soft_wrap=True)
        console.print(f"export KUBECONFIG={cluster.kubeconfig}", soft_wrap=True)
        if with_operator:
            async with _operator(cluster):
                await asyncio.Event().wait()
        await asyncio.Event().wait()
    return 0


_NETWORKS = {
    "namespaces": "a network namespace each",
    "addresses": "a loopback address each and share the network of this machine",
}


@asynccontextmanager
async def _cluster(options: ClusterOptions) -> AsyncIterator[LocalCluster]:
    """A cluster whose log, and that of the operator in it, is a file beside its data."""
    cluster = LocalCluster(options)
    with (cluster.directory / "trainop.log").open("a", encoding="utf-8") as log:
        configure_logs(LogSettings(level="info"), log)
        async with cluster:
            yield cluster


@asynccontextmanager
async def _operator(cluster: LocalCluster) -> AsyncIterator[None]:
    """The operator within this process, with the CRDs of all its kinds installed."""
    await install(cluster.client, [crd(framework) for framework in FRAMEWORKS.values()])
    settings = Settings(metrics_bind_address="0", health_probe_bind_address="0")
    manager = build(settings, cluster.transport, signals=False)
    running = asyncio.create_task(manager.run())
    try:
        yield
    finally:
        manager.stop()
        await running


async def _follow(cluster: LocalCluster, jobs: Sequence[tuple[Document, Framework]], console: Console) -> int:
    followed = [Followed(f.resource, d.key, JobView(d.key.name, d.kind)) for d, f in jobs]
    cache = Cache(cluster.client)
    with Screen(console, [job.view for job in followed]) as screen:
        follower = Follower(cluster.client, cache, followed, screen)
        watching = asyncio.create_task(cache.run())
        try:
            await follower.run()
        finally:
            watching.cancel()
    for job in followed:
        if job.ended == "Failed":
            screen.failure(job.view)
    return exit_code(followed)


def exit_code(jobs: Sequence[Followed]) -> int:
    """0 if all succeeded, 2 if one was refused as invalid, else 1."""
    if all(job.ended == "Succeeded" for job in jobs):
        return 0
    return 2 if any(job.reason.endswith("FailedValidation") for job in jobs) else 1
