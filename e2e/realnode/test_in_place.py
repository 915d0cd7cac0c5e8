"""Restarts in place by a real kubelet: which pods stay, and how long a job takes to train on."""

from __future__ import annotations

import re
import subprocess
import time

import pytest

from e2e.realnode import small_programs
from e2e.realnode.faults import Restarts, Scene, SmallJob

pytestmark = pytest.mark.images("base")

SIZE, TIMES, PAUSE = 4, 3, 14
"""Ranks, restarts of each way, and seconds between two, which the back-off of restarts in place asks for."""
SIGNALS = "import os, signal, sys; print('up', flush=True); sys.stdin.readline(); os.kill(1, signal.SIGUSR1)"


def job(name: str, **annotations: str) -> SmallJob:
    given = {f"trainop.kubeflow.org/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return SmallJob("JAXJob", "ExitCode", SIZE, name, small_programs.RING, annotations=given)


def steps(scene: Scene, job: SmallJob) -> list[tuple[float, int]]:
    """The times and numbers of the steps of rank 0 in its present run."""
    text = scene.proof.kubectl("logs", job.pods[0])
    return [(float(at), int(step)) for at, step in re.findall(r"(?m)^([\d.]+) step (\d+)$", text)]


def measure(scene: Scene, job: SmallJob) -> float:
    """Lets rank 1 fail, and returns the seconds until rank 0 has made its next step."""
    command = ["kubectl", f"--namespace={scene.proof.namespace}", "exec", "--stdin", job.pods[1]]
    kubectl = [*scene.cluster.node.inside(), *command, "--", "python", "-c", SIGNALS]
    with subprocess.Popen(kubectl, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as signalling:
        assert signalling.stdin
        assert signalling.stdout
        assert signalling.stdout.readline().strip() == "up"
        died = time.time()
        signalling.stdin.write("\n")
        signalling.stdin.close()

    def next_step() -> float | None:
        return next((at for at, step in steps(scene, job) if step == 1 and at > died), None)

    found: float = scene.proof.wait_until(next_step, f"{job.name} trains on", every=0.2)
    scene.wait_until_all_run(job)
    return found - died


def finish(scene: Scene, job: SmallJob) -> None:
    """Rank 0 tells the others that they have come to the end."""
    scene.proof.exec(job.pods[0], "touch", "/tmp/end")
    scene.proof.wait_for(job.resource, "Succeeded")


def restart_often(scene: Scene, job: SmallJob) -> list[float]:
    scene.proof.wait_until(lambda: steps(scene, job), f"{job.name} trains")
    taken = []
    for _ in range(TIMES):
        time.sleep(PAUSE)
        taken.append(measure(scene, job))
    return sorted(taken)


def test_a_restart_in_place(scene: Scene) -> None:
    """One of four ranks fails, in place and recreated (needs kubelet 1.36: TRAINOP_KUBERNETES=1.37)."""
    here, anew = job("here", restart_mode="in-place"), job("anew", restart_scope="job")
    before = scene.start(here)
    condition = scene.proof.condition(here.resource, "RestartsInPlace")
    if condition is None:
        pytest.skip("the API server does not serve the rules: set TRAINOP_KUBERNETES=1.37")
    in_place = restart_often(scene, here)
    assert scene.uids(here) == before
    assert scene.restarts(here) == Restarts(failures=TIMES)
    assert scene.status(here)["lastFailure"]["attempt"] == TIMES
    finish(scene, here)
    old = scene.start(anew)
    recreated = restart_often(scene, anew)
    assert not set(scene.uids(anew)) & set(old)
    finish(scene, anew)
    middle = TIMES // 2
    scene.proof.expect(
        "The pods stay, each failure counts once, and the job trains on in half of the time.",
        f"{in_place[middle]:.1f} s in place, {recreated[middle]:.1f} s with new pods",
    )
    assert in_place[middle] <= 0.5 * recreated[middle], (in_place, recreated)
