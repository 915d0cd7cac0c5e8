"""An API server that is stopped for a minute. In a separate file, so that other tests run in parallel."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from e2e.cluster.controlplane import ControlPlane
from tests.server.crowd import PodRecorder, create_jobs, names, uids
from tests.server.process import Operator
from tests.server.world import World, replicas

FREEZE = 60.0
"""Seconds; longer than any timeout of a request."""


def test_frozen_for_a_minute(
    world: World, operator: Operator, control_plane: ControlPlane, record_pods: Callable[[World], PodRecorder]
):
    """The kernel still acknowledges packets for a stopped process, so only timeouts detect it."""
    recorder = record_pods(world)
    world.create_job("before", {"Worker": replicas(2)})
    world.wait_pods("before-worker-0", "before-worker-1")
    process = operator.process
    create_jobs(world, 4, 4)
    control_plane.signal("kube-apiserver", signal.SIGSTOP)
    try:
        time.sleep(FREEZE)
        assert operator.running
        assert operator.probe("/healthz")[0] == 200
    finally:
        control_plane.signal("kube-apiserver", signal.SIGCONT)
    everything = {"before-worker-0", "before-worker-1"} | names(4, 4)
    world.wait(lambda: set(world.pods()) == everything, "all pods")
    world.create_job("after", {"Worker": replicas(1)})
    world.wait(lambda: "after-worker-0" in world.pods(), "the pod of a new job")
    before = uids(world.pods())
    for name in before:
        world.run_pod(name)
    jobs = ("before", "after", "j0", "j1", "j2", "j3")
    for job in jobs:
        world.wait_condition("Running", job)
    for name in before:
        world.end_pod(name)
    for job in jobs:
        world.wait_condition("Succeeded", job)
    assert uids(world.pods()) == before
    assert recorder.made() == dict.fromkeys(before, 1), "no pod was created twice, not even one that was deleted again"
    assert operator.process is process, "the operator recovered without a restart"
    assert operator.running
    assert "Traceback" not in operator.text()
