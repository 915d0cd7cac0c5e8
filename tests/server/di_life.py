"""The life of a DIJob, which uses every right that the operator has for DIJobs."""

from __future__ import annotations

from tests.kinds.dijob_world import dijob
from tests.server.applied import live_as_applied
from tests.server.world import CORE, Json, World

DIJOBS = "/apis/diengine.opendilab.org/v1alpha1/namespaces/{namespace}/dijobs"


def live_as_dijob(world: World) -> None:
    """A job whose coordinator is deleted once, and then succeeds."""

    def phase() -> str:
        status: Json = world.ask("GET", f"{DIJOBS}/d").get("status", {})
        return str(status.get("phase"))

    live_as_applied(world, DIJOBS, {**dijob(), "metadata": {}})
    world.ask("POST", DIJOBS, {**dijob(), "metadata": {"name": "d"}})
    uid = world.wait_pod("d-coordinator")["metadata"]["uid"]
    world.ask("DELETE", f"{CORE}/pods/d-coordinator", {"gracePeriodSeconds": 0})
    world.wait_successor("d-coordinator", uid)
    world.wait(lambda: "d-coordinator" in world.services(), "the service of d")
    world.set_pod("d-coordinator", {"phase": "Succeeded"})
    world.wait(lambda: phase() == "Succeeded", "the end of d")
    world.wait(lambda: "d-coordinator" not in world.services(), "the clean-up of d")
    world.ask("DELETE", f"{DIJOBS}/d")
