"""Rows about the pod subresources that need a connection to a node: what is answered before one is made.

A real kube-apiserver without kubelets answers everything beyond these with an error of its connection to the node, so
that sessions themselves are tested against the embedded node only (tests/local/node/test_exec.py).
"""

from __future__ import annotations

from tests.conformance.client import Call, Holding, Row, row
from tests.conformance.objects import PODS, pod

TWO = [{"name": "a", "image": "none"}, {"name": "b", "image": "none"}]
CONNECTS = {"verbs": Holding(("create", "get"))}


def refused(method: str, path: str, code: int, message: str) -> Call:
    return Call(method, f"{PODS}/{path}", None, code, {"kind": "Status", "code": code, "message": message})


ROWS: list[Row] = [
    row(
        "portforward of a pod that no node runs",
        refused("POST", "none/portforward", 404, 'pods "none" not found'),
        Call("POST", PODS, pod(), 201),
        refused("GET", "p/portforward", 400, "pod p does not have a host assigned"),
        refused("POST", "p/portforward", 400, "pod p does not have a host assigned"),
    ),
    row(
        "connecting subresources are listed",
        Call(
            "GET",
            "/api/v1",
            expects={
                "resources": Holding(
                    (
                        {"name": "pods/exec", "kind": "PodExecOptions", **CONNECTS},
                        {"name": "pods/attach", "kind": "PodAttachOptions", **CONNECTS},
                        {"name": "pods/portforward", "kind": "PodPortForwardOptions", **CONNECTS},
                    )
                )
            },
        ),
    ),
    *(
        row(
            f"{name} of a pod that no node runs",
            refused("POST", f"none/{name}?command=true&stdout=true", 404, 'pods "none" not found'),
            Call("POST", PODS, pod(), 201),
            Call("POST", PODS, pod("two", containers=TWO), 201),
            *(
                call
                for method in ("GET", "POST")
                for call in (
                    refused(method, f"p/{name}?command=true&stdout=true", 400, "pod p does not have a host assigned"),
                    refused(method, f"p/{name}?container=x&command=true", 400, "container x is not valid for pod p"),
                    refused(
                        method,
                        f"two/{name}?command=true",
                        400,
                        "a container name must be specified for pod two, choose one of: [a b]",
                    ),
                )
            ),
            refused("DELETE", f"p/{name}", 405, "the server does not allow this method on the requested resource"),
            refused("PUT", f"p/{name}", 405, "the server does not allow this method on the requested resource"),
        )
        for name in ("exec", "attach")
    ),
]
