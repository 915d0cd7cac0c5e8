"""What happens in a measurement, and which figures come of it. Seconds, MiB; CPU in seconds."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from e2e.bench.arena import Cpu
from e2e.bench.node import SimulatedPod
from e2e.bench.stage import LINGER, Stage
from trainop.runtime.objects.metadata import Json

Sizes: TypeAlias = Mapping[str, int]
Scenario: TypeAlias = Callable[[Stage, Sizes], Awaitable[Json]]


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spent(before: Cpu, after: Cpu) -> Cpu:
    return {who: round(after[who] - before[who], 3) for who in before}


async def burst(stage: Stage, sizes: Sizes) -> Json:
    """s1: all jobs at once; until all pods exist, all jobs run, all jobs have succeeded."""
    jobs, each = sizes["jobs"], sizes["workers"] + 1
    names = [f"job-{number}" for number in range(jobs)]
    node, seen = stage.node, stage.jobs
    stage.mark()
    began, start = stage.cpu(), time.monotonic()
    await seen.post(names, sizes["workers"])
    await stage.until("all pods exist", lambda: node.added >= jobs * each)
    created = node.last_added - start
    running = await stage.until("all jobs run", lambda: seen.totals["Running"] >= jobs) - start
    whole = await stage.until("all pods are counted", lambda: seen.whole(names, each)) - start
    ran = stage.cpu()
    await asyncio.sleep(LINGER)
    stage.mark()
    before_end, end = stage.cpu(), time.monotonic()
    node.finish(stage.jobs.kind.ends)
    done = await stage.until("all jobs succeed", lambda: seen.totals["Succeeded"] >= jobs) - end
    after_end = stage.cpu()
    await asyncio.sleep(LINGER)
    stage.mark()
    waits = seen.latencies(names, "Running")
    start_cpu, end_cpu = spent(began, ran), spent(before_end, after_end)
    return {
        "pods_created": created,
        "all_running": running,
        "all_counted": whole,
        "running_p50": percentile(waits, 0.5),
        "running_p99": percentile(waits, 0.99),
        "end_to_succeeded": done,
        "operator_ms_per_job": 1000 * (start_cpu["operator"] + end_cpu["operator"]) / jobs,
        "rss_peak": stage.program.memory().peak,
        "extra_pods": node.added - jobs * each,
        "cpu": start_cpu,
        "cpu_end": end_cpu,
    }


async def big_job(stage: Stage, sizes: Sizes) -> Json:
    """s2: one job with many workers; until all its pods run and its status counts them all."""
    pods = sizes["workers"] + 1
    node, seen = stage.node, stage.jobs
    stage.mark()
    began, start = stage.cpu(), time.monotonic()
    await seen.post(["big"], sizes["workers"])
    await stage.until("all pods exist", lambda: node.added >= pods)
    await stage.until("it runs", lambda: seen.totals["Running"] >= 1)
    await stage.until("all pods are counted", lambda: seen.whole(["big"], pods))
    whole = time.monotonic() - start
    ran = stage.cpu()
    await asyncio.sleep(LINGER)
    stage.mark()
    return {
        "pods_created": node.last_added - start,
        "running": seen.seen["big"]["Running"] - start,
        "all_counted": whole,
        "operator_cpu": ran["operator"] - began["operator"],
        "rss_peak": stage.program.memory().peak,
        "extra_pods": node.added - pods,
        "cpu": spent(began, ran),
    }


async def many_pods(stage: Stage, sizes: Sizes) -> Json:
    """s3 and s5: many pods held; memory and CPU at rest; then a restart, and how long a new job waits for pods."""
    jobs, each = sizes["jobs"], sizes["workers"] + 1
    names = [f"job-{number}" for number in range(jobs)]
    node, seen = stage.node, stage.jobs
    idle_rss = stage.program.memory().rss
    began, start = stage.cpu(), time.monotonic()
    await seen.post(names, sizes["workers"])
    await stage.until("all pods exist", lambda: node.added >= jobs * each)
    created = node.last_added - start
    whole = await stage.until("all pods are counted", lambda: seen.whole(names, each)) - start
    built = stage.cpu()
    await stage.at_rest()
    peak = stage.program.memory().peak
    before, rest = stage.cpu(), time.monotonic()
    await asyncio.sleep(sizes["idle"])
    idle = 100 * (stage.cpu()["operator"] - before["operator"]) / (time.monotonic() - rest)
    rss = stage.program.memory().rss
    return {
        "pods_created": created,
        "all_counted": whole,
        "rss": rss,
        "rss_peak": peak,
        "rss_before": idle_rss,
        "kib_per_pod": 1024 * (rss - idle_rss) / (jobs * each),
        "idle_percent": idle,
        "cpu": spent(began, built),
        **await _restart(stage, sizes),
    }


async def _restart(stage: Stage, sizes: Sizes) -> Json:
    """The clock starts with the process; a new job is posted at the same moment."""
    node, first = stage.node, list[float]()
    stage.program.stop()
    await stage.arena.settle()
    want = node.added + sizes["workers"] + 1
    node.on_added = lambda _: first.append(time.monotonic())
    began, start = stage.arena.cpu(), time.monotonic()
    stage.start()
    await stage.jobs.post(["probe"], sizes["workers"])
    await stage.until("the pods of a new job", lambda: node.added >= want, 300)
    node.on_added = None
    rest = await stage.at_rest()
    return {
        "restart_first_pod": first[0] - start,
        "restart_all_pods": node.last_added - start,
        "restart_until_rest": rest - start,
        "restart_operator_cpu": stage.program.cpu(),
        "restart_rss": stage.program.memory().rss,
        "cpu_restart": spent(began, stage.cpu()),
    }


async def replacement(stage: Stage, sizes: Sizes) -> Json:
    """s4: one worker of each job fails with code 137; from the API server's answer until the new pod is seen."""
    jobs, each = sizes["jobs"], sizes["workers"] + 1
    names = [f"job-{number}" for number in range(jobs)]
    await stage.jobs.post(names, sizes["workers"], "ExitCode")
    await stage.until("all pods are counted", lambda: stage.jobs.whole(names, each))
    await stage.at_rest()
    by_job: dict[str, list[SimulatedPod]] = defaultdict(list)
    for pod in stage.node.pods.values():
        by_job[pod.job].append(pod)
    stage.mark()
    began, waits = stage.cpu(), []
    for name in names:
        victim = min((pod for pod in by_job[name] if not pod.role), key=lambda pod: pod.name)
        waits.append(await _replace(stage, victim))
        await stage.until("the job is whole again", lambda: stage.jobs.whole(names, each), 120)
        await asyncio.sleep(stage.operator.pause)
    ended = stage.cpu()
    stage.mark()
    return {
        "p50": percentile(waits, 0.5),
        "p99": percentile(waits, 0.99),
        "max": max(waits),
        "waits": waits,
        "extra_pods": stage.node.added - jobs * each - jobs,
        "cpu": spent(began, ended),
    }


async def _replace(stage: Stage, victim: SimulatedPod) -> float:
    found: asyncio.Future[SimulatedPod] = asyncio.get_running_loop().create_future()

    def look(pod: SimulatedPod) -> None:
        if pod.name == victim.name and not found.done():
            found.set_result(pod)

    stage.node.on_added = look
    failed = await stage.node.fail(victim, 137)
    successor = await asyncio.wait_for(found, 120)
    stage.node.on_added = None
    await stage.until("the new pod runs", lambda: successor.phase == "Running", 60)
    return successor.added - failed


async def head_of_line(stage: Stage, sizes: Sizes) -> Json:
    """s6: how long small jobs wait for their first pod, alone and while a big job arrives."""
    alone = [await _first_pod(stage, f"alone-{number}", sizes) for number in range(sizes["probes"])]
    await stage.at_rest()
    began = stage.cpu()
    posting = asyncio.create_task(stage.jobs.post(["big"], sizes["big"]))
    await asyncio.sleep(0.3)
    beside: list[float] = []
    while len(beside) < sizes["probes"] and stage.jobs.active.get("big", 0) < sizes["big"]:
        beside.append(await _first_pod(stage, f"beside-{len(beside)}", sizes))
    await posting
    return {
        "alone_p50": percentile(alone, 0.5),
        "alone_p99": percentile(alone, 0.99),
        "beside_p50": percentile(beside, 0.5),
        "beside_p99": percentile(beside, 0.99),
        "probes": len(beside),
        "cpu": spent(began, stage.cpu()),
    }


async def _first_pod(stage: Stage, name: str, sizes: Sizes) -> float:
    """Seconds from the answer to the POST of a small job until its first pod is seen."""
    found: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def look(pod: SimulatedPod) -> None:
        if pod.job == name and not found.done():
            found.set_result(pod.added)

    stage.node.on_added = look
    await stage.jobs.post([name], sizes["workers"])
    added = await asyncio.wait_for(found, 300)
    stage.node.on_added = None
    await asyncio.sleep(0.1)
    return added - stage.jobs.posted[name]


SCENARIOS: dict[str, tuple[Scenario, Sizes]] = {
    "s1": (burst, {"jobs": 200, "workers": 7}),
    "s2": (big_job, {"jobs": 1, "workers": 1000}),
    "s3": (many_pods, {"jobs": 1250, "workers": 7, "idle": 30}),
    "s4": (replacement, {"jobs": 50, "workers": 7}),
    "s6": (head_of_line, {"jobs": 1, "workers": 1, "big": 5000, "probes": 40}),
}

QUICK: dict[str, Sizes] = {
    "s1": {"jobs": 40, "workers": 7},
    "s2": {"jobs": 1, "workers": 200},
    "s4": {"jobs": 10, "workers": 7},
}
"""Small enough that ours and the tuned peer, once each, take less than five minutes."""
