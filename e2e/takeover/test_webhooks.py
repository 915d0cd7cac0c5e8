"""The admission webhooks when ours replaces training-operator: same certificate, same answers, nothing is written."""

from __future__ import annotations

from collections.abc import Callable

from e2e.takeover.operators import NAMESPACE, need_mounts, need_peer
from e2e.takeover.scenes import Stage
from e2e.takeover.theatre import Theatre
from tests.server.webhooks import CONFIGURATIONS, NAME, SECRET, SECRETS, Webhooks, try_job
from trainop.programs.schemes import FRAMEWORKS

PEER = "training-operator"
"""1.7 has no webhooks."""


def versions(stage: Stage) -> list[str]:
    """resourceVersions of the configuration and the Secret."""
    paths = (f"{CONFIGURATIONS}/{NAME}", f"{SECRETS}/{SECRET}")
    return [stage.ask("GET", path)["metadata"]["resourceVersion"] for path in paths]


def test_the_certificate_is_continued(make_theatre: Callable[[str], Theatre]) -> None:
    need_mounts()
    need_peer(PEER)
    theatre = make_theatre(PEER)
    stage = Stage(theatre.api, FRAMEWORKS["PyTorchJob"], NAMESPACE)
    hooks = Webhooks(stage)
    old = theatre.old()
    new = theatre.new(f"--webhook-server-port={old.webhook_port}", environment={"MY_POD_NAMESPACE": NAMESPACE})
    hooks.install(old.webhook_port, "Fail")
    old.start()
    hooks.wait_injected()
    theatre.mount_secret(hooks.secret())
    hooks.wait_called()
    denied = try_job(stage, "0-test")
    before = versions(stage)
    old.end()

    new.start()
    hooks.wait_called()
    assert try_job(stage, "0-test") == denied
    assert try_job(stage, "good").status == 201
    assert versions(stage) == before
    assert new.end() == 0

    old.start()
    hooks.wait_called()
    assert try_job(stage, "0-test") == denied
    assert versions(stage) == before
