"""Both operators at once, by accident: with leader election only one of them acts."""

from __future__ import annotations

import signal

from e2e.takeover.operators import NAMESPACE
from e2e.takeover.scenes import Scene, Stage, runs
from e2e.takeover.theatre import NEW, OLD, Theatre
from tests.server.test_election import LEASE
from trainop.programs.schemes import FRAMEWORKS

PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE}"


def holder(stage: Stage) -> str:
    lease = stage.try_to("GET", PATH)
    return str(lease.body["spec"].get("holderIdentity") or "") if lease.status == 200 else ""


def play(stage: Stage, name: str) -> None:
    stage.create_scene(Scene(name))
    runs(stage, name)


def test_only_the_leader_acts(theatre: Theatre) -> None:
    stage = Stage(theatre.api, FRAMEWORKS["PyTorchJob"])
    old = theatre.old("--leader-elect")
    new = theatre.new("--leader-elect", f"--leader-election-namespace={NAMESPACE}")
    old.start()
    stage.wait(lambda: holder(stage), "a leader")
    first = holder(stage)
    new.start()
    play(stage, "a")
    theatre.audit.wait_quiet(OLD)
    assert theatre.writes(OLD, 0)
    assert theatre.writes(NEW, 0) == []

    old.end(signal.SIGKILL)
    stage.wait(lambda: holder(stage) not in {"", first}, "our operator to lead")
    mark = theatre.audit.end()
    old.start()
    play(stage, "b")
    theatre.audit.wait_quiet(NEW)
    assert theatre.writes(OLD, mark) == []
    assert theatre.writes(NEW, mark)

    second = holder(stage)
    assert new.end() == 0
    stage.wait(lambda: holder(stage) not in {"", second}, "training-operator to lead again")
    mark = theatre.audit.end()
    play(stage, "c")
    assert theatre.writes(NEW, mark) == []
