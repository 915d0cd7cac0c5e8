"""The effect of a maximum-size job on small jobs (noisy neighbour), with the operator as a process.

python -m e2e.bench.neighbours [--kube] [CASE ...]        about five minutes; exit code 1 if a limit is exceeded

Each case starts a new operator and a new API server as processes: `e2e.bench.bytesserver`, or with `--kube` a
kube-apiserver with etcd. Small jobs are created before the large one, and `NEIGHBOURS` small jobs beside it; the
slowest first pod of each group is reported. `e2e.bench.probed` measures the longest step of the operator's event loop
in wall time and CPU time. The limit applies to CPU time, because other processes may use the machine. Memory is the
operator's peak beyond its memory when it became ready.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import structlog
import yaml

from e2e.bench.operators import ROOT
from e2e.bench.processes import Program, exit_on_sigterm
from e2e.bench.shapes import SHAPES, pytorch
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import free_ports
from e2e.cluster.places import default_data
from trainop.engine.framework import OPERATOR_NAME
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.client.auth import load_config
from trainop.runtime.client.client import Client
from trainop.runtime.client.http import HttpTransport
from trainop.runtime.errors import ApiError, NotFoundError
from trainop.runtime.objects.metadata import CUSTOM_RESOURCE_DEFINITIONS, PODS, Json

JOBS = PYTORCH.resource
NAMESPACE = "default"
MAX_STALL = 100.0
"""Milliseconds."""
MAX_MEMORY = 64.0
"""MiB."""
MAX_DELAY = 1.0
"""Seconds."""
NEIGHBOURS = 4
SPACING = 2.0
"""Seconds between the creation of two neighbours."""
PATIENCE = 60.0
IDLE_MEMORY = 55.0
"""MiB of an operator that is ready and has not read any object."""


class Case(NamedTuple):
    shape: str
    updates: int = 0
    """Number of updates of an annotation of the job, one per second."""
    pods: int = 0
    """Number of pods of 1 MiB without a job that exist when the operator starts."""
    pages: bool = False
    """Whether the API server supports paginated lists only, no streamed lists."""
    readable: bool = False
    """Whether the job is limited to the size that the operator accepts, not to the size that etcd accepts."""

    def job(self) -> Json:
        shape = SHAPES[self.shape]
        return shape.readable_job() if self.readable else shape.job()


CASES = {
    "none": Case(""),
    "many ports": Case("many ports"),
    "many containers": Case("many containers"),
    "many init containers": Case("many init containers"),
    "huge variable": Case("huge variable"),
    "many annotations": Case("many annotations"),
    "huge annotation": Case("huge annotation"),
    "many empty lists": Case("many empty lists"),
    "many nameless containers": Case("many nameless containers"),
    "elastic configuration": Case("elastic configuration"),
    "many ports, updated each second": Case("many ports", updates=10),
    "many empty lists, updated each second": Case("many empty lists", updates=10),
    **{
        f"{shape}, at the operator's limit": Case(shape, readable=True)
        for shape in ("many ports", "many annotations", "many empty lists", "many nameless containers")
    },
    "300 pods of 1 MiB at the start": Case("", pods=300),
    "300 pods of 1 MiB at the start, paginated": Case("", pods=300, pages=True),
}


class Harness:
    def __init__(self, client: Client, program: Program, steps: Path) -> None:
        self.client, self.program, self._steps = client, program, steps
        self.accepted = True
        """Whether the API server has accepted the large job."""

    async def first_pod(self, name: str) -> float:
        """Seconds from the creation of a small job to its first pod."""
        await self.client.create(JOBS, _named(pytorch(replicas=2), name))
        began = time.monotonic()
        await self.wait_for_pod(f"a pod of {name}", f"{name}-worker-0")
        return time.monotonic() - began

    async def wait_for_pod(self, what: str, pod: str) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with suppress(NotFoundError):
                await self.client.get(PODS, pod, NAMESPACE)
                return
            await asyncio.sleep(0.02)
        raise TimeoutError(f"timed out waiting for {what}; {self.program.tail()}")

    def reset_steps(self) -> None:
        """Resets the longest step."""
        self.program.signal(signal.SIGUSR1)
        self._steps.write_text("")

    def longest_step(self) -> Json:
        lines = self._steps.read_text().splitlines()
        return dict(json.loads(lines[-1])) if lines else {"wall": 0.0, "cpu": 0.0}


def _named(job: Json, name: str) -> Json:
    return {**job, "metadata": {**job["metadata"], "name": name, "namespace": NAMESPACE}}


def _large_pod(number: int) -> Json:
    container = {"name": "c", "image": "i", "env": [{"name": "V", "value": "x" * 2**20}]}
    metadata = {"name": f"large-{number}", "namespace": NAMESPACE, "labels": {OPERATOR_NAME: "x"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


@asynccontextmanager
async def open_server(folder: Path, *, kube: bool, pages: bool) -> AsyncIterator[Path]:
    """Starts an API server and yields its kubeconfig."""
    if kube:
        plane = ControlPlane(default_data(f"bench-{folder.name}"), die_with_parent=True)
        await asyncio.to_thread(plane.up)
        try:
            yield plane.kubeconfig
        finally:
            await asyncio.to_thread(plane.down)
        return
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "e2e.bench.bytesserver", str(port), *(["--pages"] if pages else [])]
    server = Program(command, folder / "server.log", {**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        cluster = {"cluster": {"server": f"http://127.0.0.1:{port}"}, "name": "bench"}
        context = {"name": "bench", "context": {"cluster": "bench", "user": "bench"}}
        config = {"current-context": "bench", "clusters": [cluster], "contexts": [context]}
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(json.dumps({**config, "users": [{"name": "bench", "user": {}}]}))
        yield kubeconfig
    finally:
        server.stop()


@asynccontextmanager
async def open_harness(case: Case, folder: Path, *, kube: bool) -> AsyncIterator[Harness]:
    """Starts an API server with the objects of `case`, and the operator."""
    async with AsyncExitStack() as stack:
        kubeconfig = await stack.enter_async_context(open_server(folder, kube=kube, pages=case.pages))
        transport = HttpTransport(load_config(str(kubeconfig)))
        stack.push_async_callback(transport.close)
        client = Client(transport)
        await _prepare(client, case, kube=kube)
        steps = folder / "steps"
        ports = free_ports(2)
        addresses = [
            f"--{what}-bind-address=127.0.0.1:{port}"
            for what, port in zip(("metrics", "health-probe"), ports, strict=True)
        ]
        flags = [f"--kubeconfig={kubeconfig}", *addresses, "--zap-devel=false", "--enable-scheme=pytorchjob"]
        command = [sys.executable, "-m", "e2e.bench.probed", str(steps), *flags]
        program = Program(command, folder / "operator.log", {**os.environ, "PYTHONPATH": str(ROOT)})
        stack.callback(program.stop)
        yield Harness(client, program, steps)


async def _prepare(client: Client, case: Case, *, kube: bool) -> None:
    if kube:
        for path in sorted((ROOT / "manifests" / "crds").glob("*pytorch*.yaml")):
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, yaml.safe_load(path.read_text()))
    end = time.monotonic() + PATIENCE
    while True:
        try:
            await client.list(JOBS)
            break
        except (ApiError, ConnectionError):
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.1)
    for number in range(case.pods):
        await client.create(PODS, _large_pod(number))


async def measure(case: Case, *, kube: bool) -> Json:
    with tempfile.TemporaryDirectory() as name:
        async with open_harness(case, Path(name), kube=kube) as harness:
            await harness.first_pod("early")
            baseline = harness.program.memory().peak
            if case.pods:  # reading the pods is part of the start and is measured
                baseline = IDLE_MEMORY
            else:
                harness.reset_steps()
            alone = max([await harness.first_pod(f"before-{number}") for number in range(2)])
            disturbance = asyncio.create_task(_create_large_job(harness, case))
            await asyncio.sleep(SPACING / 4)
            beside = []
            for number in range(NEIGHBOURS):
                beside.append(await harness.first_pod(f"beside-{number}"))
                await asyncio.sleep(SPACING)
            await disturbance
            memory = harness.program.memory().peak - baseline
            row = {**harness.longest_step(), "memory": memory, "alone": alone, "beside": max(beside)}
            return row | {"note": "" if harness.accepted else "not accepted by the API server"}


async def _create_large_job(harness: Harness, case: Case) -> None:
    if not case.shape:
        return
    try:
        await harness.client.create(JOBS, _named(case.job(), "hostile"))
    except (ApiError, TimeoutError):  # kube-apiserver needs half a minute for some shapes
        harness.accepted = False
        return
    for number in range(case.updates):
        await asyncio.sleep(1)
        await harness.client.patch(JOBS, "hostile", NAMESPACE, {"metadata": {"annotations": {"number": str(number)}}})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kube", action="store_true", help="beside a kube-apiserver")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    exit_on_sigterm()
    missed = 0
    print(f"limits: {MAX_STALL:.0f} ms of CPU time per step, {MAX_MEMORY:.0f} MiB, {MAX_DELAY:.0f} s of delay\n")
    print("| job | longest step, wall ms | longest step, CPU ms | memory, MiB | first pod alone, s | beside it, s | |")
    print("|---|---|---|---|---|---|---|")
    for name in options.cases or CASES:
        row = asyncio.run(measure(CASES[name], kube=options.kube))
        met = row["cpu"] <= MAX_STALL and row["memory"] <= MAX_MEMORY and row["beside"] - row["alone"] <= MAX_DELAY
        missed += not met
        figures = "{wall:.0f} | {cpu:.0f} | {memory:.0f} | {alone:.2f} | {beside:.2f}".format(**row)
        print(f"| {name} | {figures} | {row['note'] if met else 'exceeded'} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
