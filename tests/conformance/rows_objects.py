"""Rows about discovery, about creating, reading, replacing and deleting objects, and about errors."""

from __future__ import annotations

from tests.conformance.client import ABSENT, MERGE, PRESENT, Call, Holding, Row, Text, row
from tests.conformance.objects import CORE, GROUP, JOBS, MAPS, PODS, WIDGETS, config_map, pod, widget

DISCOVERY = [
    row("version", Call("GET", "/version", expects={"major": "1", "minor": Text(r"^\d+"), "gitVersion": Text("^v1")})),
    row("health", *(Call("GET", path, expects={"text": "ok"}) for path in ("/healthz", "/livez", "/readyz"))),
    row("core versions", Call("GET", "/api", expects={"kind": "APIVersions", "versions": ["v1"]})),
    row(
        "groups",
        Call(
            "GET",
            "/apis",
            expects={
                "kind": "APIGroupList",
                "groups": Holding(
                    (
                        {"name": GROUP, "preferredVersion.version": "v1"},
                        {"name": "kubeflow.org", "versions.0.groupVersion": "kubeflow.org/v1"},
                        {"name": "coordination.k8s.io"},
                    )
                ),
            },
        ),
        Call("GET", f"/apis/{GROUP}", expects={"kind": "APIGroup", "name": GROUP}),
    ),
    row(
        "core resources",
        Call(
            "GET",
            "/api/v1",
            expects={
                "kind": "APIResourceList",
                "groupVersion": "v1",
                "resources": Holding(
                    (
                        {"name": "pods", "namespaced": True, "kind": "Pod", "singularName": "pod"},
                        {"name": "pods", "shortNames": ["po"], "verbs": Holding(("create", "watch", "patch"))},
                        {"name": "pods/status", "kind": "Pod"},
                        {"name": "pods/log", "kind": "Pod"},
                        {"name": "namespaces", "namespaced": False},
                        {"name": "events"},
                        {"name": "services"},
                    )
                ),
            },
        ),
    ),
    row(
        "custom resources",
        Call(
            "GET",
            f"/apis/{GROUP}/v1",
            expects={
                "resources": Holding(
                    (
                        {"name": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]},
                        {"name": "widgets/status", "kind": "Widget"},
                        {"name": "widgets/scale", "group": "autoscaling", "version": "v1", "kind": "Scale"},
                    )
                )
            },
        ),
    ),
    row(
        "PyTorchJob is served",
        Call(
            "GET",
            "/apis/kubeflow.org/v1",
            expects={
                "resources": Holding(
                    ({"name": "pytorchjobs", "singularName": "pytorchjob"}, {"name": "pytorchjobs/scale"})
                )
            },
        ),
        Call("GET", JOBS, expects={"kind": "PyTorchJobList", "items": []}),
    ),
    row("no such group", Call("GET", "/apis/nowhere.dev/v1/things", status=404)),
    row("no such version", Call("GET", f"/apis/{GROUP}/v9/namespaces/$ns/widgets", status=404)),
    row("no such resource", Call("GET", f"{CORE}/things", status=404)),
]

CREATE = [
    row(
        "server's fields of a core object",
        Call(
            "POST",
            MAPS,
            config_map(data={"k": "v"}),
            201,
            {
                "kind": "ConfigMap",
                "apiVersion": "v1",
                "metadata.namespace": "$ns",
                "metadata.uid": Text("^[0-9a-f-]{36}$"),
                "metadata.resourceVersion": Text(r"^\d+$"),
                "metadata.creationTimestamp": Text(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"),
                "metadata.generation": ABSENT,
                "metadata.managedFields.0.operation": "Update",
                "data": {"k": "v"},
            },
        ),
    ),
    row("a custom object has a generation", Call("POST", WIDGETS, widget(), 201, {"metadata.generation": 1})),
    row(
        "generateName",
        Call(
            "POST",
            MAPS,
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "gen-"}},
            201,
            {"metadata.name": Text("^gen-[a-z0-9]{5}$"), "metadata.generateName": "gen-"},
        ),
    ),
    row(
        "no name",
        Call(
            "POST",
            MAPS,
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}},
            422,
            {"reason": "Invalid", "details.causes.0.field": "metadata.name", "message": Text("name or generateName")},
        ),
    ),
    row(
        "a bad name",
        Call(
            "POST",
            MAPS,
            config_map("Not_Good"),
            422,
            {
                "kind": "Status",
                "status": "Failure",
                "code": 422,
                "reason": "Invalid",
                "message": Text('^ConfigMap "Not_Good" is invalid: metadata.name: Invalid value: "Not_Good": '),
                "details.kind": "ConfigMap",
                "details.name": "Not_Good",
                "details.causes.0.reason": "FieldValueInvalid",
                "details.causes.0.field": "metadata.name",
            },
        ),
    ),
    row(
        "a bad label",
        Call(
            "POST",
            MAPS,
            config_map(labels={"a": "b c"}),
            422,
            {"reason": "Invalid", "details.causes.0.field": "metadata.labels"},
        ),
    ),
    row(
        "already there",
        Call("POST", MAPS, config_map(), 201),
        Call(
            "POST",
            MAPS,
            config_map(),
            409,
            {
                "reason": "AlreadyExists",
                "message": 'configmaps "a" already exists',
                "details": {"name": "a", "kind": "configmaps"},
            },
        ),
    ),
    row(
        "another namespace in the body",
        Call(
            "POST",
            MAPS,
            config_map(namespace="elsewhere"),
            400,
            {"reason": "BadRequest", "message": Text("namespace of the provided object does not match")},
        ),
    ),
    row(
        "a namespace that is not there",
        Call(
            "POST",
            "/api/v1/namespaces/nowhere/configmaps",
            config_map(),
            404,
            {"reason": "NotFound", "message": 'namespaces "nowhere" not found', "details.kind": "namespaces"},
        ),
    ),
    row("another kind in the body", Call("POST", MAPS, pod(), 400, {"reason": "BadRequest"})),
    row("no JSON", Call("POST", MAPS, "{not json", 400, {"reason": "BadRequest", "code": 400})),
    row(
        "a content type nobody speaks",
        Call("POST", MAPS, "a,b", 415, {"reason": "UnsupportedMediaType"}, content_type="text/csv"),
    ),
    row("YAML", Call("POST", MAPS, "metadata: {name: z}\ndata: {k: v}\n", 201, content_type="application/yaml")),
    row(
        "a field of the wrong type",
        Call(
            "POST",
            MAPS,
            {**config_map(), "data": {"k": 1}},
            400,
            {"reason": "BadRequest", "message": Text("cannot be handled as a ConfigMap")},
        ),
    ),
    row(
        "stringData of a secret",
        Call(
            "POST",
            f"{CORE}/secrets",
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "v"}},
            201,
            {"data": {"k": "dg=="}, "type": "Opaque", "stringData": ABSENT},
        ),
    ),
    row(
        "a headless service",
        Call(
            "POST",
            f"{CORE}/services",
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "s"},
                "spec": {"clusterIP": "None", "selector": {"a": "b"}, "ports": [{"port": 23456}]},
            },
            201,
            {
                "spec.clusterIP": "None",
                "spec.type": "ClusterIP",
                "spec.sessionAffinity": "None",
                "spec.ports.0": {"port": 23456, "protocol": "TCP", "targetPort": 23456},
            },
        ),
    ),
    row(
        "a lease keeps microseconds",
        Call(
            "POST",
            "/apis/coordination.k8s.io/v1/namespaces/$ns/leases",
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": "l"},
                "spec": {"holderIdentity": "me", "renewTime": "2024-01-02T03:04:05.000006Z"},
            },
            201,
            {"spec.renewTime": "2024-01-02T03:04:05.000006Z"},
        ),
    ),
]

READ_AND_REPLACE = [
    row(
        "not found",
        Call(
            "GET",
            f"{MAPS}/nope",
            None,
            404,
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "reason": "NotFound",
                "message": 'configmaps "nope" not found',
                "details": {"name": "nope", "kind": "configmaps"},
            },
        ),
        Call(
            "GET",
            f"{WIDGETS}/nope",
            None,
            404,
            {
                "message": f'widgets.{GROUP} "nope" not found',
                "details": {"name": "nope", "group": GROUP, "kind": "widgets"},
            },
        ),
    ),
    row(
        "a method that is not allowed",
        Call("POST", MAPS, config_map(), 201),
        Call("POST", f"{MAPS}/a", config_map(), 405, {"reason": "MethodNotAllowed"}),
    ),
    row(
        "replace",
        Call("POST", MAPS, config_map(data={"k": "v"}), 201, keeps={"rv": "metadata.resourceVersion"}),
        Call("PUT", f"{MAPS}/a", config_map(data={"other": "x"}, resourceVersion="$rv"), 200, {"data.k": ABSENT}),
        Call("GET", f"{MAPS}/a", expects={"data": {"other": "x"}}),
    ),
    row(
        "replace what has changed since",
        Call("POST", MAPS, config_map(), 201, keeps={"rv": "metadata.resourceVersion"}),
        Call("PATCH", f"{MAPS}/a", {"data": {"k": "new"}}, content_type=MERGE),
        Call(
            "PUT",
            f"{MAPS}/a",
            config_map(data={"k": "old"}, resourceVersion="$rv"),
            409,
            {
                "reason": "Conflict",
                "message": 'Operation cannot be fulfilled on configmaps "a": the object has been modified; '
                "please apply your changes to the latest version and try again",
                "details": {"name": "a", "kind": "configmaps"},
            },
        ),
    ),
    row(
        "replace without a version",
        Call("POST", MAPS, config_map(), 201),
        Call("PUT", f"{MAPS}/a", config_map(data={"k": "v"}), 200),
        Call("POST", WIDGETS, widget(), 201),
        Call(
            "PUT",
            f"{WIDGETS}/w",
            widget(),
            422,
            {"reason": "Invalid", "message": Text("metadata.resourceVersion: Invalid value: .*must be specified")},
        ),
    ),
    row("replace what is not there", Call("PUT", f"{MAPS}/a", config_map(), 404, {"reason": "NotFound"})),
    row(
        "replace under another name",
        Call("POST", MAPS, config_map(), 201),
        Call("PUT", f"{MAPS}/a", config_map("b"), 400, {"reason": "BadRequest", "message": Text("does not match")}),
    ),
    row(
        "replace a namesake",
        Call("POST", MAPS, config_map(), 201),
        Call(
            "PUT",
            f"{MAPS}/a",
            config_map(uid="00000000-0000-0000-0000-000000000000"),
            409,
            {"reason": "Conflict", "message": Text("Precondition failed: UID in precondition")},
        ),
    ),
    row(
        "replace with the same writes nothing",
        Call("POST", MAPS, config_map(data={"k": "v"}), 201, keeps={"rv": "metadata.resourceVersion"}),
        Call("PUT", f"{MAPS}/a", config_map(data={"k": "v"}), 200, {"metadata.resourceVersion": "$rv"}),
    ),
    row(
        "generation follows the spec only",
        Call("POST", WIDGETS, widget(spec={"size": 2}), 201),
        Call("PATCH", f"{WIDGETS}/w", {"metadata": {"labels": {"a": "b"}}}, 200, {"metadata.generation": 1}, {}, MERGE),
        Call("PATCH", f"{WIDGETS}/w", {"spec": {"size": 3}}, 200, {"metadata.generation": 2}, {}, MERGE),
    ),
    row(
        "server's fields cannot be set",
        Call("POST", MAPS, config_map(), 201, keeps={"uid": "metadata.uid", "born": "metadata.creationTimestamp"}),
        Call(
            "PATCH",
            f"{MAPS}/a",
            {"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z", "generation": 9}},
            200,
            {"metadata.creationTimestamp": "$born", "metadata.uid": "$uid"},
            content_type=MERGE,
        ),
    ),
]

DELETE = [
    row(
        "delete answers what was deleted",
        Call("POST", MAPS, config_map(), 201, keeps={"uid": "metadata.uid"}),
        Call(
            "DELETE",
            f"{MAPS}/a",
            None,
            200,
            {"kind": "Status", "status": "Success", "details": {"name": "a", "kind": "configmaps", "uid": "$uid"}},
        ),
        Call("GET", f"{MAPS}/a", status=404),
        Call("DELETE", f"{MAPS}/a", None, 404, {"reason": "NotFound"}),
    ),
    row(
        "delete with another UID",
        Call("POST", MAPS, config_map(), 201),
        Call(
            "DELETE",
            f"{MAPS}/a",
            {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}},
            409,
            {"reason": "Conflict", "message": Text("the UID in the precondition .* does not match the UID in record")},
        ),
        Call("GET", f"{MAPS}/a"),
    ),
    row(
        "delete with an old version",
        Call("POST", MAPS, config_map(), 201, keeps={"rv": "metadata.resourceVersion"}),
        Call("PATCH", f"{MAPS}/a", {"data": {"k": "v"}}, content_type=MERGE),
        Call("DELETE", f"{MAPS}/a", {"preconditions": {"resourceVersion": "$rv"}}, 409, {"reason": "Conflict"}),
    ),
    row(
        "delete a collection by label",
        *(Call("POST", MAPS, config_map(n, labels={"keep": k}), 201) for n, k in (("a", "no"), ("b", "yes"))),
        Call("DELETE", f"{MAPS}?labelSelector=keep=no", None, 200),
        Call("GET", f"{MAPS}?labelSelector=keep", expects={"items.#": 1, "items.0.metadata.name": "b"}),
    ),
    row(
        "finalizers hold an object",
        Call("POST", WIDGETS, widget(finalizers=["trainop.dev/hold"]), 201),
        Call(
            "DELETE",
            f"{WIDGETS}/w",
            None,
            200,
            {"kind": "Widget", "metadata.deletionTimestamp": PRESENT, "metadata.deletionGracePeriodSeconds": 0},
        ),
        Call(
            "PATCH",
            f"{WIDGETS}/w",
            {"metadata": {"finalizers": ["trainop.dev/hold", "trainop.dev/more"]}},
            422,
            {"reason": "Invalid", "message": Text("no new finalizers can be added if the object is being deleted")},
            {},
            MERGE,
        ),
        Call("PATCH", f"{WIDGETS}/w", {"metadata": {"finalizers": None}}, content_type=MERGE),
        Call("GET", f"{WIDGETS}/w", status=404),
    ),
    row(
        "grace period of a pod that a node runs",
        Call("POST", PODS, pod(nodeName="n1"), 201),
        Call(
            "DELETE",
            f"{PODS}/p",
            None,
            200,
            {"kind": "Pod", "metadata.deletionTimestamp": PRESENT, "metadata.deletionGracePeriodSeconds": 30},
        ),
        Call("GET", f"{PODS}/p", expects={"metadata.deletionTimestamp": PRESENT}),
        Call("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0}, 200),
        Call("GET", f"{PODS}/p", status=404),
    ),
    row(
        "a pod that no node runs is gone at once",
        Call("POST", PODS, pod(), 201),
        Call("DELETE", f"{PODS}/p", None, 200),
        Call("GET", f"{PODS}/p", status=404),
    ),
    row(
        "a namespace that is being deleted takes nothing new",
        Call(
            "POST",
            "/api/v1/namespaces",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "$ns-end"}},
            201,
            {"status.phase": "Active", "spec.finalizers": ["kubernetes"]},
        ),
        Call(
            "POST",
            "/api/v1/namespaces/$ns-end/configmaps",
            config_map(finalizers=["trainop.dev/hold"]),
            201,
        ),
        Call("DELETE", "/api/v1/namespaces/$ns-end", None, 200, {"status.phase": "Terminating"}),
        Call(
            "POST",
            "/api/v1/namespaces/$ns-end/configmaps",
            config_map("b"),
            403,
            {
                "reason": "Forbidden",
                "message": Text("because it is being terminated"),
                "details.causes.0.reason": "NamespaceTerminating",
            },
        ),
    ),
]

PODS_ROWS = [
    row(
        "defaults of a pod",
        Call(
            "POST",
            PODS,
            pod(),
            201,
            {
                "spec.restartPolicy": "Always",
                "spec.dnsPolicy": "ClusterFirst",
                "spec.schedulerName": "default-scheduler",
                "spec.terminationGracePeriodSeconds": 30,
                "spec.securityContext": {},
                "spec.containers.0.imagePullPolicy": "Always",
                "spec.containers.0.terminationMessagePath": "/dev/termination-log",
                "status.phase": "Pending",
                "status.qosClass": "BestEffort",
            },
        ),
    ),
    row(
        "a pod without containers",
        Call(
            "POST",
            PODS,
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": []}},
            422,
            {
                "message": 'Pod "p" is invalid: spec.containers: Required value',
                "details.causes.0.reason": "FieldValueRequired",
            },
        ),
    ),
    row(
        "container without image or name",
        Call(
            "POST",
            PODS,
            pod(containers=[{"name": "main"}, {"image": "none"}]),
            422,
            {"message": Text(r"spec.containers\[0\].image: Required value.*spec.containers\[1\].name: Required value")},
        ),
    ),
    row(
        "a running pod cannot change",
        Call("POST", PODS, pod(), 201),
        Call(
            "PATCH",
            f"{PODS}/p",
            {"spec": {"restartPolicy": "Never"}},
            422,
            {"message": Text("spec: Forbidden: pod updates may not change fields other than")},
            {},
            MERGE,
        ),
    ),
    row(
        "binding",
        Call("POST", PODS, pod(), 201),
        Call(
            "POST",
            f"{PODS}/p/binding",
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": "p"},
                "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
            },
            201,
            {"kind": "Status", "status": "Success"},
        ),
        Call("GET", f"{PODS}/p", expects={"spec.nodeName": "n1"}),
    ),
    row(
        "the status of a pod is apart",
        Call("POST", PODS, pod(), 201),
        Call(
            "PATCH",
            f"{PODS}/p/status",
            {"status": {"phase": "Running"}, "metadata": {"labels": {"a": "b"}}},
            200,
            {"status.phase": "Running"},
            {},
            MERGE,
        ),
        Call("PATCH", f"{PODS}/p", {"status": {"phase": "Failed"}}, 200, {"status.phase": "Running"}, {}, MERGE),
        Call("GET", f"{PODS}?fieldSelector=status.phase=Running", expects={"items.#": 1}),
        Call("GET", f"{PODS}?fieldSelector=status.phase!=Running", expects={"items.#": 0}),
    ),
    row(
        "an event about a pod",
        Call(
            "POST",
            f"{CORE}/events",
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": "e"},
                "involvedObject": {"kind": "Pod", "namespace": "$ns", "name": "p"},
                "reason": "Tested",
                "type": "Normal",
            },
            201,
        ),
        Call("GET", f"{CORE}/events?fieldSelector=involvedObject.name=p,type=Normal", expects={"items.#": 1}),
        Call("GET", f"{CORE}/events?fieldSelector=involvedObject.name=q", expects={"items.#": 0}),
    ),
]

ROWS: list[Row] = [*DISCOVERY, *CREATE, *READ_AND_REPLACE, *DELETE, *PODS_ROWS]
