"""What runs from the failure of a pod until its replacement is created (`e2e/docs/restart.py`)."""

from __future__ import annotations

import pytest

from e2e.docs.restart import BUDGET, Walk, take_walk


@pytest.fixture(scope="module")
def walk() -> Walk:
    return take_walk()


def test_few_modules_run(walk: Walk):
    """A reader who looks for the cause of a wrong restart reads no others."""
    advice = "run it only where its feature is on, merge what is one idea, or raise BUDGET with a reason"
    assert len(walk.functions) <= BUDGET, f"more runs in a restart than before: {advice}: {sorted(walk.functions)}"


def test_a_restart_is_counted_before_its_pod_is_deleted(walk: Walk):
    job = "/apis/kubeflow.org/v1/namespaces/ns/pytorchjobs/j"
    pods = "/api/v1/namespaces/ns/pods"
    counted, *others, created = walk.writes
    assert (counted, created) == (f"PATCH {job}", f"POST {pods}")
    assert sorted(others) == [f"DELETE {pods}/j-worker-0", f"PUT {job}/status"]


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("trainop/runtime/cache/reflector.py", "Reflector._apply"),
        ("trainop/controllers/reconciler.py", "JobReconciler.reconcile"),
        ("trainop/engine/plan.py", "plan"),
        ("trainop/engine/steps/restarts.py", "restart"),
        ("trainop/controllers/children.py", "ChildWriter._remove"),
        ("trainop/engine/manifests.py", "Manifests.pod"),
    ],
)
def test_the_way_is_complete(walk: Walk, module: str, function: str):
    assert function in walk.functions[module]


def test_the_api_server_is_not_on_the_way(walk: Walk):
    assert not any(module.startswith("trainop/local/") for module in walk.functions)
