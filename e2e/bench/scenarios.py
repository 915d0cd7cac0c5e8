"""The scenarios: each performs one measurement and returns its figures (seconds, MiB, CPU seconds)."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from e2e.bench.cluster import NAMESPACE, Cpu
from e2e.bench.harness import Harness
from e2e.bench.node import SimulatedPod
from trainop.runtime.objects.metadata import SERVICES, Json

Sizes: TypeAlias = Mapping[str, int]
Scenario: TypeAlias = Callable[[Harness, Sizes], Awaitable[Json]]


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def cpu_used(before: Cpu, after: Cpu) -> Cpu:
    return {component: round(after[component] - before[component], 3) for component in before}


async def burst(harness: Harness, sizes: Sizes) -> Json:
    """s1: creates all jobs at once; times until all pods exist, all jobs run, all jobs have succeeded."""
    jobs, each = sizes["jobs"], sizes["workers"] + 1
    names = [f"job-{number}" for number in range(jobs)]
    node, jobs_seen = harness.node, harness.jobs
    harness.mark()
    cpu_before, start = harness.cpu(), time.monotonic()
    await jobs_seen.post(names, sizes["workers"])
    await harness.wait_until("all pods exist", lambda: node.added >= jobs * each)
    created = node.last_added - start
    running = await harness.wait_until("all jobs run", lambda: jobs_seen.totals["Running"] >= jobs) - start
    all_counted = await harness.wait_until("all pods are counted", lambda: jobs_seen.all_counted(names, each)) - start
    settled = await harness.drain() - start
    ran, objects = harness.cpu(), harness.cluster.count_objects()
    harness.mark()
    before_end, end = harness.cpu(), time.monotonic()
    node.finish(harness.jobs.kind.ends)
    done = await harness.wait_until("all jobs succeed", lambda: jobs_seen.totals["Succeeded"] >= jobs) - end
    await harness.drain()
    harness.mark()
    waits, creation = jobs_seen.latencies(names, "Running"), [jobs_seen.creation[name] for name in names]
    start_cpu, end_cpu = cpu_used(cpu_before, ran), cpu_used(before_end, harness.cpu())
    return {
        "pods_created": created,
        "all_running": running,
        "all_counted": all_counted,
        "running_p50": percentile(waits, 0.5),
        "running_p99": percentile(waits, 0.99),
        "end_to_succeeded": done,
        "create_p50": percentile(creation, 0.5),
        "create_p99": percentile(creation, 0.99),
        **({"settled": settled} if harness.cluster.has_controllers else {}),
        **{
            f"{component}_ms_per_job": 1000 * (start_cpu[component] + end_cpu[component]) / jobs
            for component in harness.cluster.components
        },
        "objects": objects,
        "rss_peak": harness.program.memory().peak,
        "extra_pods": node.added - jobs * each,
        "cpu": start_cpu,
        "cpu_end": end_cpu,
    }


async def big_job(harness: Harness, sizes: Sizes) -> Json:
    """s2: one job with many workers; time until all pods run and the status counts all of them."""
    pods = sizes["workers"] + 1
    node, jobs_seen = harness.node, harness.jobs
    harness.mark()
    cpu_before, start = harness.cpu(), time.monotonic()
    await jobs_seen.post(["big"], sizes["workers"])
    await harness.wait_until("all pods exist", lambda: node.added >= pods)
    await harness.wait_until("it runs", lambda: jobs_seen.totals["Running"] >= 1)
    await harness.wait_until("all pods are counted", lambda: jobs_seen.all_counted(["big"], pods))
    all_counted = time.monotonic() - start
    settled = await harness.drain() - start
    used, objects = cpu_used(cpu_before, harness.cpu()), harness.cluster.count_objects()
    harness.mark()
    return {
        "pods_created": node.last_added - start,
        "running": jobs_seen.seen["big"]["Running"] - start,
        "all_counted": all_counted,
        **({"settled": settled} if harness.cluster.has_controllers else {}),
        **{f"{component}_cpu": used[component] for component in harness.cluster.components},
        "objects": objects,
        "rss_peak": harness.program.memory().peak,
        "extra_pods": node.added - pods,
        "cpu": used,
    }


async def many_pods(harness: Harness, sizes: Sizes) -> Json:
    """s3 and s5: many running pods; idle memory and CPU; then an operator restart and the wait of a new job."""
    jobs, each = sizes["jobs"], sizes["workers"] + 1
    names = [f"job-{number}" for number in range(jobs)]
    node, jobs_seen = harness.node, harness.jobs
    idle_rss = harness.program.memory().rss
    cpu_before, start = harness.cpu(), time.monotonic()
    await jobs_seen.post(names, sizes["workers"])
    await harness.wait_until("all pods exist", lambda: node.added >= jobs * each)
    created = node.last_added - start
    all_counted = await harness.wait_until("all pods are counted", lambda: jobs_seen.all_counted(names, each)) - start
    built = harness.cpu()
    await harness.wait_idle()
    peak = harness.program.memory().peak
    before, rest = harness.cpu(), time.monotonic()
    await asyncio.sleep(sizes["idle"])
    idle = 100 * (harness.cpu()["operator"] - before["operator"]) / (time.monotonic() - rest)
    rss = harness.program.memory().rss
    return {
        "pods_created": created,
        "all_counted": all_counted,
        "rss": rss,
        "rss_peak": peak,
        "rss_before": idle_rss,
        "kib_per_pod": 1024 * (rss - idle_rss) / (jobs * each),
        "idle_percent": idle,
        "cpu": cpu_used(cpu_before, built),
        **await _restart(harness, sizes),
    }


async def _restart(harness: Harness, sizes: Sizes) -> Json:
    """Restarts the operator and creates a job at the same moment; times count from the start of the process."""
    node, first = harness.node, list[float]()
    harness.program.stop()
    await harness.cluster.wait_idle()
    want = node.added + sizes["workers"] + 1
    node.on_added = lambda _: first.append(time.monotonic())
    cpu_before, start = harness.cluster.cpu(), time.monotonic()
    harness.start()
    await harness.jobs.post(["probe"], sizes["workers"])
    await harness.wait_until("the pods of a new job", lambda: node.added >= want, 300)
    node.on_added = None
    rest = await harness.wait_idle()
    return {
        "restart_first_pod": first[0] - start,
        "restart_all_pods": node.last_added - start,
        "restart_until_rest": rest - start,
        "restart_operator_cpu": harness.program.cpu(),
        "restart_rss": harness.program.memory().rss,
        "cpu_restart": cpu_used(cpu_before, harness.cpu()),
    }


async def replacement(harness: Harness, sizes: Sizes) -> Json:
    """s4: one worker of each job fails with exit code 137, then another one of each, and so on; time from the API
    server's response to the new pod. No pod fails twice, because operators delay the second restart of a replica."""
    jobs, each = sizes["jobs"], sizes["workers"] + 1
    names = [f"job-{number}" for number in range(jobs)]
    await harness.jobs.post(names, sizes["workers"], "ExitCode")
    await harness.wait_until("all pods are counted", lambda: harness.jobs.all_counted(names, each))
    await harness.wait_idle()
    by_job: dict[str, list[SimulatedPod]] = defaultdict(list)
    for pod in sorted(harness.node.pods.values(), key=lambda pod: pod.name):
        if not pod.role:
            by_job[pod.job].append(pod)
    harness.mark()
    cpu_before, waits = harness.cpu(), []
    for number in range(sizes["failures"]):
        for name in names:
            waits.append(await _replace(harness, by_job[name][number]))
            await asyncio.sleep(harness.operator.pause)
        await harness.wait_until("the jobs are whole again", lambda: harness.jobs.all_counted(names, each), 120)
    ended = harness.cpu()
    harness.mark()
    return {
        "p50": percentile(waits, 0.5),
        "p95": percentile(waits, 0.95),
        "max": max(waits),
        "waits": waits,
        "extra_pods": harness.node.added - jobs * each - len(waits),
        "cpu": cpu_used(cpu_before, ended),
    }


async def _replace(harness: Harness, victim: SimulatedPod) -> float:
    found: asyncio.Future[SimulatedPod] = asyncio.get_running_loop().create_future()

    def on_added(pod: SimulatedPod) -> None:
        if pod.name == victim.name and not found.done():
            found.set_result(pod)

    harness.node.on_added = on_added
    failed = await harness.node.fail(victim, 137)
    successor = await asyncio.wait_for(found, 120)
    harness.node.on_added = None
    await harness.wait_until("the new pod runs", lambda: successor.phase == "Running", 60)
    return successor.added - failed


async def head_of_line(harness: Harness, sizes: Sizes) -> Json:
    """s6: time until the first pod of small jobs, alone and while a large job is created (head-of-line blocking)."""
    node, each = harness.node, sizes["workers"] + 1
    alone = [await _first_pod(harness, f"alone-{number}", sizes) for number in range(sizes["probes"])]
    await harness.wait_idle()
    cpu_before, start, before = harness.cpu(), time.monotonic(), node.added
    posting = asyncio.create_task(harness.jobs.post(["big"], sizes["big"]))
    await asyncio.sleep(0.3)
    beside: list[float] = []
    while node.added - before - len(beside) * each <= sizes["big"] and len(beside) < MAX_BESIDE:
        beside.append(await _first_pod(harness, f"beside-{len(beside)}", sizes))
    await posting
    want = before + sizes["big"] + 1 + len(beside) * each
    await harness.wait_until("all pods of the large job exist", lambda: node.added >= want)
    return {
        "alone_p50": percentile(alone, 0.5),
        "alone_p95": percentile(alone, 0.95),
        "beside_p50": percentile(beside, 0.5),
        "beside_p95": percentile(beside, 0.95),
        "big_created": node.last_added - start,
        "probes": len(beside),
        "cpu": cpu_used(cpu_before, harness.cpu()),
    }


MAX_BESIDE = 1000
"""Limit of the small jobs beside a large one."""


async def _first_pod(harness: Harness, name: str, sizes: Sizes) -> float:
    """Seconds from the response to the POST of a small job until its first pod is observed."""
    found: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def on_added(pod: SimulatedPod) -> None:
        if pod.job == name and not found.done():
            found.set_result(pod.added)

    harness.node.on_added = on_added
    await harness.jobs.post([name], sizes["workers"])
    added = await asyncio.wait_for(found, 300)
    harness.node.on_added = None
    await asyncio.sleep(0.1)
    return added - harness.jobs.posted[name]


async def crowded(harness: Harness, sizes: Sizes) -> Json:
    """services: jobs in a namespace with few Services, and again with many more that select no pod. For each changed
    pod, kube-controller-manager walks all Services of its namespace."""
    cpu_before = harness.cpu()
    few = await _run_jobs(harness, "few", sizes)
    await _create_services(harness, sizes["services"])
    await harness.drain()
    many = await _run_jobs(harness, "many", sizes)
    return {
        **{f"few_{name}": value for name, value in few.items()},
        **{f"many_{name}": value for name, value in many.items()},
        "cpu": cpu_used(cpu_before, harness.cpu()),
    }


async def _run_jobs(harness: Harness, prefix: str, sizes: Sizes) -> Json:
    """Milliseconds of CPU per job until the cluster is at rest, and seconds until all jobs run."""
    names = [f"{prefix}-{number}" for number in range(sizes["jobs"])]
    before, start = harness.cpu(), time.monotonic()
    await harness.jobs.post(names, sizes["workers"])
    ready = partial(harness.jobs.all_counted, names, sizes["workers"] + 1)
    running = await harness.wait_until(f"the pods of the {prefix} jobs are counted", ready) - start
    await harness.drain()
    used = cpu_used(before, harness.cpu())
    return {"running": running, **{each: 1000 * used[each] / len(names) for each in ("kcm", "apiserver")}}


async def _create_services(harness: Harness, count: int) -> None:
    todo = iter(range(count))

    async def work() -> None:
        for number in todo:
            labels = {"training.kubeflow.org/job-name": f"idle-{number // 8}", "index": str(number % 8)}
            spec = {"clusterIP": "None", "selector": labels, "ports": [{"port": 23456}]}
            body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": f"idle-{number}"}, "spec": spec}
            await harness.cluster.client.create(SERVICES, body, namespace=NAMESPACE, metadata_only=True)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(32):
            tasks.create_task(work())


class Setting(NamedTuple):
    """How a scenario is measured."""

    perform: Scenario
    sizes: Sizes
    repetitions: int = 2
    endpoints: bool = False
    """Whether the cluster writes EndpointSlices."""


SCENARIOS: dict[str, Setting] = {
    "s1": Setting(burst, {"jobs": 200, "workers": 7}, 5, endpoints=True),
    "s2": Setting(big_job, {"jobs": 1, "workers": 1000}, 5, endpoints=True),
    "s3": Setting(many_pods, {"jobs": 1250, "workers": 7, "idle": 30}),
    "s4": Setting(replacement, {"jobs": 100, "workers": 7, "failures": 5}),
    "s6": Setting(head_of_line, {"jobs": 1, "workers": 1, "big": 5000, "probes": 40}, 3),
    "services": Setting(crowded, {"jobs": 20, "workers": 7, "services": 1600}, 1, endpoints=True),
    "gang-s1": Setting(burst, {"jobs": 100, "workers": 7}),
    "webhook-s1": Setting(burst, {"jobs": 100, "workers": 7}),
    **{
        f"{transport}-{name}": setting
        for transport in ("ssh", "exec")
        for name, setting in {
            "s1": Setting(burst, {"jobs": 100, "workers": 7}),
            "s2": Setting(big_job, {"jobs": 1, "workers": 1000}),
            "s3": Setting(many_pods, {"jobs": 100, "workers": 99, "idle": 10}, 1),
        }.items()
    },
}
"""Those with a prefix are the scenarios of that name with other jobs or settings."""

QUICK: dict[str, Sizes] = {
    "s1": {"jobs": 40, "workers": 7},
    "s2": {"jobs": 1, "workers": 200},
    "s4": {"jobs": 10, "workers": 7, "failures": 1},
}
"""Sizes with which one run each of all operators takes less than five minutes."""
