"""Only the image is replaced: our operator runs with the ClusterRole of training-operator."""

from __future__ import annotations

import yaml

from e2e.peers import PEERS
from e2e.takeover.scenes import SCENES
from e2e.takeover.theatre import APPLY, Theatre

LIMITED = "limited"
SHOWN = {"runs", "retried", "stopped", "keeps", "late", "elastic", "grown"}
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def grant(theatre: Theatre) -> None:
    """Binds the user to the shipped role of the release."""
    file = PEERS[theatre.peer].manifest_folder / "base" / "rbac" / "role.yaml"
    role = yaml.safe_load(file.read_text())
    name = role["metadata"]["name"]
    answer = theatre.api("PATCH", f"{RBAC}/clusterroles/{name}?fieldManager=test", role, APPLY)
    assert answer.status == 201, answer
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": LIMITED}],
    }
    answer = theatre.api("POST", f"{RBAC}/clusterrolebindings", binding)
    assert answer.status == 201, answer


def test_only_the_image_is_replaced(theatre: Theatre) -> None:
    grant(theatre)
    stages = theatre.stages()
    cast = [
        (stage, scene)
        for stage in stages.values()
        for scene in SCENES
        if scene.name in SHOWN and (not scene.kinds or stage.framework.kind in scene.kinds)
    ]
    old, new = theatre.old(), theatre.new(user=LIMITED)
    old.start()
    for stage, scene in cast:
        stage.create_scene(scene)
    for stage, scene in cast:
        for step in scene.past:
            step(stage, scene.name)
    old.end()
    new.start()
    mark = theatre.audit.end()
    for stage, scene in cast:
        for step in scene.future:
            step(stage, scene.name)
    theatre.audit.wait_quiet(LIMITED)
    assert [str(write) for write in theatre.writes(LIMITED, mark) if write.code >= 400] == []
