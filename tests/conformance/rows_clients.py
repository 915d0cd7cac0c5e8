"""Rows about sequences of requests by informers, controllers and kubectl: lists at a version, watches with selectors,
kinds that are added and removed, kinds with several versions."""

from __future__ import annotations

from tests.conformance.client import (
    ABSENT,
    APPLY,
    MERGE,
    PRESENT,
    STRATEGIC,
    TABLE,
    Call,
    Compact,
    Holding,
    Row,
    Text,
    Until,
    Watch,
    row,
)
from tests.conformance.objects import CORE, CRD, CRDS, GROUP, MAPS, PODS, WIDGETS, config_map, pod, widget

ABC = tuple(Call("POST", WIDGETS, widget(name, labels={"name": name}), 201) for name in "abc")
STREAM = f"{WIDGETS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
END = {"type": "BOOKMARK", "object.metadata.annotations.k8s/io~initial-events-end": "true"}
NOW = Call("GET", WIDGETS, keeps={"rv": "metadata.resourceVersion"})
MAPS_NOW = Call("GET", MAPS, keeps={"rv": "metadata.resourceVersion"})

LISTS = [
    row(
        "exactly at a version",
        *ABC,
        NOW,
        Call("DELETE", f"{WIDGETS}/a"),
        Call(
            "GET",
            f"{WIDGETS}?resourceVersion=$rv&resourceVersionMatch=Exact",
            expects={"items.#": 3, "items.0.metadata.name": "a", "metadata.resourceVersion": "$rv"},
        ),
    ),
    row(
        "exactly at a version that is forgotten",
        *ABC,
        Call("GET", WIDGETS, keeps={"rv": "metadata.resourceVersion"}),
        Call("DELETE", f"{WIDGETS}/a"),
        Compact(),
        Call(
            "GET",
            f"{WIDGETS}?resourceVersion=$rv&resourceVersionMatch=Exact&limit=1",
            None,
            410,
            {"reason": "Expired", "code": 410},
        ),
    ),
    row(
        "not older than one's own write",
        Call("POST", WIDGETS, widget("x"), 201, keeps={"rv": "metadata.resourceVersion"}),
        Call(
            "GET",
            f"{WIDGETS}?resourceVersion=$rv&resourceVersionMatch=NotOlderThan",
            expects={"items.0.metadata.name": "x"},
        ),
    ),
    row(
        "a list is at the version of the last write, not of the last item",
        *ABC,
        Call("POST", MAPS, config_map(), 201, keeps={"later": "metadata.resourceVersion"}),
        NOW,
        Watch(f"{MAPS}?watch=1&resourceVersion=$rv&timeoutSeconds=1", ends=True),
    ),
    row(
        "what remains is not reported of a selection",
        *ABC,
        Call(
            "GET",
            f"{WIDGETS}?limit=1&labelSelector=name",
            expects={"metadata.remainingItemCount": ABSENT, "metadata.continue": PRESENT, "items.#": 1},
            keeps={"next": "metadata.continue"},
        ),
        Call(
            "GET",
            f"{WIDGETS}?limit=5&labelSelector=name&continue=$next",
            expects={"items.#": 2, "metadata.continue": "", "items.1.metadata.name": "c"},
        ),
    ),
    row(
        "a list that has expired can go on with what is there now",
        *ABC,
        Call("GET", f"{WIDGETS}?limit=2", keeps={"next": "metadata.continue"}),
        Call("POST", WIDGETS, widget("d"), 201),
        Compact(),
        Call("GET", f"{WIDGETS}?limit=2&continue=$next", None, 410, keeps={"fresh": "metadata.continue"}),
        Call(
            "GET",
            f"{WIDGETS}?limit=2&continue=$fresh",
            expects={"items.#": 2, "items.0.metadata.name": "c", "items.1.metadata.name": "d"},
        ),
    ),
    row(
        "a continuation names no version",
        *ABC,
        Call("GET", f"{WIDGETS}?limit=2", keeps={"next": "metadata.continue", "rv": "metadata.resourceVersion"}),
        Call("GET", f"{WIDGETS}?limit=2&continue=$next&resourceVersion=$rv", None, 400, {"reason": "BadRequest"}),
        Call(
            "GET",
            f"{WIDGETS}?limit=2&continue=$next&resourceVersion=$rv&resourceVersionMatch=Exact",
            None,
            422,
            {"reason": "Invalid"},
        ),
    ),
    row(
        "pages of a table",
        *ABC,
        Call(
            "GET",
            f"{WIDGETS}?limit=2",
            expects={"kind": "Table", "rows.#": 2, "metadata.continue": PRESENT, "metadata.remainingItemCount": 1},
            keeps={"next": "metadata.continue"},
            accept=TABLE,
        ),
        Call(
            "GET",
            f"{WIDGETS}?limit=2&continue=$next",
            expects={"rows.#": 1, "rows.0.cells.0": "c", "metadata.resourceVersion": Text(r"^\d+$")},
            accept=TABLE,
        ),
    ),
    row(
        "pods by phase and name",
        Call("POST", PODS, pod("p1"), 201),
        Call("POST", PODS, pod("p2"), 201),
        Call("GET", f"{PODS}?fieldSelector=status.phase=Pending,metadata.name=p2", expects={"items.#": 1}),
        Call("GET", f"{PODS}?fieldSelector=status.phase==Running", expects={"items.#": 0}),
        Call("GET", f"{PODS}?fieldSelector=spec.restartPolicy=Always", expects={"items.#": 2}),
        Call("GET", f"{PODS}?fieldSelector=nonsense", None, 400, {"reason": "BadRequest"}),
    ),
    row("a representation nobody has", Call("GET", MAPS, status=406, accept="text/csv")),
    row(
        "the first representation that is known",
        Call("POST", MAPS, config_map(), 201),
        Call("GET", MAPS, expects={"kind": "Table"}, accept=f"{TABLE},application/json"),
        Call("GET", MAPS, expects={"kind": "ConfigMapList"}, accept="text/csv,application/json"),
    ),
]

WATCHES = [
    row(
        "a streaming list becomes a watch",
        *ABC,
        Watch(
            STREAM,
            (),
            (
                *({"type": "ADDED", "object.metadata.name": name} for name in "abc"),
                END,
                Call("PATCH", f"{WIDGETS}/b", {"spec": {"size": 5}}, content_type=MERGE),
                {"type": "MODIFIED", "object.spec.size": 5},
                Call("DELETE", f"{WIDGETS}/a"),
                {"type": "DELETED", "object.metadata.name": "a"},
            ),
        ),
    ),
    row(
        "a streaming list of a selection",
        *ABC,
        Watch(
            f"{STREAM}&labelSelector=name=b",
            (),
            (
                {"type": "ADDED", "object.metadata.name": "b"},
                END,
                Call("PATCH", f"{WIDGETS}/a", {"metadata": {"labels": {"name": "b"}}}, content_type=MERGE),
                {"type": "ADDED", "object.metadata.name": "a"},
            ),
        ),
    ),
    row(
        "a streaming list not older than a version",
        *ABC,
        NOW,
        Watch(
            f"{STREAM}&resourceVersion=$rv",
            (),
            (*({"type": "ADDED", "object.metadata.name": name} for name in "abc"), END),
        ),
    ),
    row(
        "the bookmark of a streaming list is where the next watch begins",
        *ABC,
        NOW,
        Watch(STREAM, (), (*({"type": "ADDED"} for _ in "abc"), {**END, "object.metadata.name": ABSENT})),
        Call("DELETE", f"{WIDGETS}/c"),
        Watch(
            f"{WIDGETS}?watch=1&resourceVersion=$rv&allowWatchBookmarks=true",
            (),
            ({"type": "DELETED", "object.metadata.name": "c"},),
        ),
    ),
    row(
        "pods that leave a field selector",
        Call("POST", PODS, pod(), 201, keeps={"rv": "metadata.resourceVersion"}),
        Watch(
            f"{PODS}?watch=1&resourceVersion=$rv&fieldSelector=status.phase=Running",
            (),
            (
                Call("PATCH", f"{PODS}/p/status", {"status": {"phase": "Running"}}, content_type=MERGE),
                {"type": "ADDED", "object.status.phase": "Running"},
                Call("PATCH", f"{PODS}/p/status", {"status": {"phase": "Succeeded"}}, content_type=MERGE),
                {"type": "DELETED", "object.metadata.name": "p"},
            ),
        ),
    ),
    row(
        "a deletion that a finalizer holds is a change until it ends",
        MAPS_NOW,
        Watch(
            f"{MAPS}?watch=1&resourceVersion=$rv&fieldSelector=metadata.name=a",
            (
                Call("POST", MAPS, config_map(finalizers=["trainop.dev/hold"]), 201),
                Call("DELETE", f"{MAPS}/a", None, 200),
                Call("DELETE", f"{MAPS}/a", None, 200),
                Call("PATCH", f"{MAPS}/a", {"metadata": {"finalizers": None}}, content_type=MERGE),
            ),
            (
                {"type": "ADDED", "object.metadata.deletionTimestamp": ABSENT},
                {"type": "MODIFIED", "object.metadata.deletionTimestamp": PRESENT},
                {"type": "DELETED", "object.metadata.name": "a"},
            ),
        ),
    ),
    row(
        "a write that changes nothing is no event",
        Call("POST", MAPS, config_map(data={"a": "1"}), 201, keeps={"rv": "metadata.resourceVersion"}),
        Watch(
            f"{MAPS}?watch=1&resourceVersion=$rv&fieldSelector=metadata.name=a",
            (
                Call("PATCH", f"{MAPS}/a", {"data": {"a": "1"}}, content_type=MERGE),
                Call("PATCH", f"{MAPS}/a", {"data": {"a": "2"}}, content_type=MERGE),
            ),
            ({"type": "MODIFIED", "object.data.a": "2"},),
        ),
    ),
    row(
        "a watch of everything in all namespaces",
        NOW,
        Watch(
            f"/apis/{GROUP}/v1/widgets?watch=1&resourceVersion=$rv&fieldSelector=metadata.namespace=$ns",
            ABC[:1],
            ({"type": "ADDED", "object.metadata.namespace": "$ns"},),
        ),
    ),
]

REFERENCES = {"apiVersion": "v1", "kind": "ConfigMap", "uid": "00000000-0000-0000-0000-000000000000"}

WRITES = [
    row(
        "a version in what is created",
        Call(
            "POST",
            MAPS,
            config_map(resourceVersion="5"),
            500,
            {"reason": ABSENT, "message": "resourceVersion should not be set on objects to be created"},
        ),
    ),
    row(
        "the server's own fields in what is created",
        Call(
            "POST",
            WIDGETS,
            widget(uid="mine", generation=7, deletionTimestamp="2001-01-01T00:00:00Z", selfLink="/x"),
            201,
            {
                "metadata.uid": Text("^[0-9a-f-]{36}$"),
                "metadata.generation": 1,
                "metadata.deletionTimestamp": ABSENT,
            },
        ),
    ),
    row(
        "a long generateName is cut",
        Call(
            "POST",
            MAPS,
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "x" * 80}},
            201,
            {"metadata.name": Text("^x{58}[a-z0-9]{5}$")},
        ),
    ),
    row(
        "a name goes before generateName",
        Call("POST", MAPS, config_map(generateName="gen-"), 201, {"metadata.name": "a"}),
    ),
    row(
        "two owners that control",
        Call(
            "POST",
            MAPS,
            config_map(
                ownerReferences=[
                    {**REFERENCES, "name": "x", "controller": True},
                    {**REFERENCES, "uid": "00000000-0000-0000-0000-000000000001", "name": "y", "controller": True},
                ]
            ),
            422,
            {"reason": "Invalid", "details.causes.0.field": "metadata.ownerReferences"},
        ),
    ),
    row(
        "deletion by version and UID that both hold",
        Call("POST", MAPS, config_map(), 201, keeps={"rv": "metadata.resourceVersion", "uid": "metadata.uid"}),
        Call("DELETE", f"{MAPS}/a", {"preconditions": {"uid": "$uid", "resourceVersion": "$rv"}}, 200),
        Call("GET", f"{MAPS}/a", status=404),
    ),
    row(
        "a propagation that is none",
        Call("POST", MAPS, config_map(), 201),
        Call("DELETE", f"{MAPS}/a", {"propagationPolicy": "Sideways"}, 422, {"reason": "Invalid"}),
        Call("DELETE", f"{MAPS}/a?propagationPolicy=Sideways", None, 422, {"reason": "Invalid"}),
    ),
    row(
        "each propagation leaves its finalizer",
        *(Call("POST", WIDGETS, widget(name, finalizers=["trainop.dev/hold"]), 201) for name in ("b", "f", "o")),
        Call("DELETE", f"{WIDGETS}/b", {"propagationPolicy": "Background"}, 200),
        Call("GET", f"{WIDGETS}/b", expects={"metadata.finalizers": ["trainop.dev/hold"]}),
        Call(
            "DELETE",
            f"{WIDGETS}/f?propagationPolicy=Foreground",
            None,
            200,
            {"metadata.finalizers": Holding(("foregroundDeletion", "trainop.dev/hold"))},
        ),
        Call(
            "DELETE",
            f"{WIDGETS}/o",
            {"propagationPolicy": "Orphan"},
            200,
            {"metadata.finalizers": Holding(("orphan", "trainop.dev/hold")), "metadata.generation": 2},
        ),
    ),
    row(
        "a collection in which some are held",
        Call("POST", MAPS, config_map("held", finalizers=["trainop.dev/hold"], labels={"x": "y"}), 201),
        Call("POST", MAPS, config_map("free", labels={"x": "y"}), 201),
        Call("DELETE", f"{MAPS}?labelSelector=x=y", None, 200),
        Call(
            "GET",
            f"{MAPS}?labelSelector=x=y",
            expects={"items.#": 1, "items.0.metadata.deletionTimestamp": PRESENT, "items.0.metadata.name": "held"},
        ),
    ),
    row(
        "a deleted object can be changed while it is held, and its name is taken",
        Call("POST", MAPS, config_map(finalizers=["trainop.dev/hold"]), 201),
        Call("DELETE", f"{MAPS}/a", None, 200),
        Call("PATCH", f"{MAPS}/a", {"data": {"k": "v"}}, 200, {"data.k": "v"}, content_type=MERGE),
        Call(
            "POST",
            MAPS,
            config_map(),
            409,
            {"reason": "AlreadyExists", "message": Text('object is being deleted: configmaps "a" already exists')},
        ),
    ),
    row(
        "a status by merge patch of a version",
        Call("POST", WIDGETS, widget(), 201, keeps={"rv": "metadata.resourceVersion"}),
        Call(
            "PATCH",
            f"{WIDGETS}/w/status",
            {"metadata": {"resourceVersion": "$rv"}, "status": {"phase": "Good"}},
            200,
            {"status.phase": "Good", "metadata.generation": 1},
            content_type=MERGE,
        ),
        Call(
            "PATCH",
            f"{WIDGETS}/w/status",
            {"metadata": {"resourceVersion": "$rv"}, "status": {"phase": "Bad"}},
            409,
            {"reason": "Conflict"},
            content_type=MERGE,
        ),
    ),
    row(
        "a status whose field is taken out",
        Call("POST", WIDGETS, widget(), 201),
        Call("PATCH", f"{WIDGETS}/w/status", {"status": {"phase": "Good", "replicas": 1}}, content_type=MERGE),
        Call(
            "PATCH",
            f"{WIDGETS}/w/status",
            {"status": {"replicas": None, "unknown": 1}},
            200,
            {"status": {"phase": "Good", "replicas": ABSENT, "unknown": ABSENT}},
            content_type=MERGE,
        ),
    ),
    row(
        "conditions of a pod merge by type",
        Call("POST", PODS, pod(), 201),
        *(
            Call(
                "PATCH",
                f"{PODS}/p/status",
                {"status": {"conditions": [{"type": kind, "status": "True"}]}},
                content_type=STRATEGIC,
            )
            for kind in ("Ready", "Initialized")
        ),
        Call("GET", f"{PODS}/p", expects={"status.conditions.#": 2}),
    ),
    row(
        "the count of an event goes up by strategic merge",
        Call(
            "POST",
            f"{CORE}/events",
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": "e"},
                "involvedObject": {"kind": "Pod", "namespace": "$ns", "name": "p"},
                "reason": "Tested",
                "count": 1,
            },
            201,
        ),
        Call("PATCH", f"{CORE}/events/e", {"count": 2}, 200, {"count": 2}, content_type=STRATEGIC),
        Call("PATCH", f"{CORE}/events/none", {"count": 2}, 404, {"reason": "NotFound"}, content_type=STRATEGIC),
    ),
    row(
        "apply needs kind and name to agree with the path",
        Call(
            "PATCH",
            f"{MAPS}/a?fieldManager=me",
            config_map("b"),
            400,
            {"reason": "BadRequest"},
            content_type=APPLY,
        ),
    ),
    row(
        "apply at a version that is none",
        Call("PATCH", f"{MAPS}/a?fieldManager=me", config_map(), 201, content_type=APPLY),
        Call(
            "PATCH",
            f"{MAPS}/a?fieldManager=me",
            config_map(resourceVersion="1", data={"a": "b"}),
            409,
            {"reason": "Conflict"},
            content_type=APPLY,
        ),
    ),
    row(
        "a lease is taken once",
        Call(
            "POST",
            "/apis/coordination.k8s.io/v1/namespaces/$ns/leases",
            {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "leaseTransitions": 0}},
            201,
            keeps={"rv": "metadata.resourceVersion"},
        ),
        *(
            Call(
                "PUT",
                "/apis/coordination.k8s.io/v1/namespaces/$ns/leases/l",
                {"metadata": {"name": "l", "resourceVersion": "$rv"}, "spec": {"holderIdentity": holder}},
                status,
            )
            for holder, status in (("b", 200), ("c", 409))
        ),
        Call(
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/$ns/leases/l",
            {"metadata": {"name": "l"}, "spec": {"renewTime": "2024-01-02T03:04:05Z"}},
            400,
            {"reason": "BadRequest", "message": Text('cannot parse "Z" as ".000000"')},
        ),
    ),
    row(
        "times are reported in UTC, to the second",
        Call("POST", PODS, pod(), 201),
        Call(
            "PATCH",
            f"{PODS}/p/status",
            {"status": {"startTime": "2024-01-02T03:04:05.6+01:00"}},
            200,
            {"status.startTime": "2024-01-02T02:04:05Z"},
            content_type=MERGE,
        ),
    ),
]


def crd_of(plural: str) -> dict[str, object]:
    """A kind of two versions with the same schema, in a group of its own."""
    group = f"{plural}.{GROUP}"
    spec = CRD["spec"]
    first = {**spec["versions"][0], "additionalPrinterColumns": []}  # type: ignore[index]  # it is a mapping
    second = {**first, "name": "v2", "storage": False}
    names = {"plural": plural, "singular": plural[:-1], "kind": plural[:-1].title(), "listKind": f"{plural}List"}
    return {
        **CRD,
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [first, second]},
    }


def thing(plural: str, version: str = "v1") -> dict[str, object]:
    return {**widget("t"), "apiVersion": f"{plural}.{GROUP}/{version}", "kind": plural[:-1].title()}


def path_of(plural: str, version: str = "v1") -> str:
    return f"/apis/{plural}.{GROUP}/{version}/namespaces/$ns/{plural}"


KINDS = [
    row(
        "versions of a kind without conversion are one object",
        Call("POST", CRDS, crd_of("gears"), 201),
        Until(Call("GET", path_of("gears"))),
        Until(Call("GET", path_of("gears", "v2"))),
        Call("POST", path_of("gears"), thing("gears"), 201, {"apiVersion": f"gears.{GROUP}/v1"}, {"u": "metadata.uid"}),
        Call(
            "GET",
            f"{path_of('gears', 'v2')}/t",
            expects={"apiVersion": f"gears.{GROUP}/v2", "metadata.uid": "$u"},
            keeps={"rv": "metadata.resourceVersion"},
        ),
        Watch(
            f"{path_of('gears', 'v2')}?watch=1&resourceVersion=$rv",
            (Call("PATCH", f"{path_of('gears')}/t", {"spec": {"size": 9}}, content_type=MERGE),),
            ({"type": "MODIFIED", "object.apiVersion": f"gears.{GROUP}/v2", "object.spec.size": 9},),
        ),
        Call("DELETE", f"{CRDS}/gears.gears.{GROUP}"),
    ),
    row(
        "a kind comes and goes",
        Call("GET", path_of("bolts"), status=404),
        Call("GET", f"/apis/bolts.{GROUP}/v1", status=404),
        Call("POST", CRDS, crd_of("bolts"), 201),
        Until(Call("GET", path_of("bolts"), expects={"items": []})),
        Until(Call("GET", f"/apis/bolts.{GROUP}/v1", expects={"resources": Holding(({"name": "bolts"},))})),
        Call("POST", path_of("bolts"), thing("bolts"), 201, keeps={"rv": "metadata.resourceVersion"}),
        Watch(
            f"{path_of('bolts')}?watch=1&resourceVersion=$rv",
            (Call("DELETE", f"{CRDS}/bolts.bolts.{GROUP}", None, 200),),
            ({"type": "DELETED", "object.metadata.name": "t"},),
            ends=True,
        ),
        Until(Call("GET", path_of("bolts"), status=404)),
        Until(Call("GET", f"/apis/bolts.{GROUP}/v1", status=404)),
        Until(Call("GET", f"{CRDS}/bolts.bolts.{GROUP}", status=404)),
    ),
    row(
        "a kind that a finalizer of its own holds loses its objects and waits",
        Call(
            "POST",
            CRDS,
            {**crd_of("nuts"), "metadata": {"name": f"nuts.nuts.{GROUP}", "finalizers": ["trainop.dev/hold"]}},
            201,
            {"metadata.finalizers": ["trainop.dev/hold"]},
        ),
        Until(Call("GET", path_of("nuts"), expects={"items": []})),
        Call("POST", path_of("nuts"), thing("nuts"), 201),
        Call("DELETE", f"{CRDS}/nuts.nuts.{GROUP}", None, 200),
        Until(Call("GET", f"{CRDS}/nuts.nuts.{GROUP}", expects={"metadata.finalizers": ["trainop.dev/hold"]})),
        Call(
            "PATCH",
            f"{CRDS}/nuts.nuts.{GROUP}",
            {"metadata": {"finalizers": None}},
            200,
            {"metadata.deletionTimestamp": PRESENT},
            content_type=MERGE,
        ),
        Until(Call("GET", f"{CRDS}/nuts.nuts.{GROUP}", status=404)),
    ),
]

ROWS: list[Row] = [*LISTS, *WATCHES, *WRITES, *KINDS]
