"""Rows about lists, pages, selectors, tables and watches."""

from __future__ import annotations

from tests.conformance.client import (
    ABSENT,
    MERGE,
    PARTIAL,
    PARTIAL_LIST,
    PRESENT,
    TABLE,
    Call,
    Compact,
    Row,
    Text,
    Watch,
    row,
)
from tests.conformance.objects import JOBS, MAPS, PODS, WIDGETS, config_map, pod, pytorch_job, widget

LABELLED = tuple(
    Call("POST", WIDGETS, widget(name, labels=labels), 201)
    for name, labels in (("a", {"env": "dev"}), ("b", {"env": "prod", "tier": "web"}), ("c", {}))
)


def selects(selector: str, *names: str) -> Call:
    expects = {f"items.{place}.metadata.name": name for place, name in enumerate(names)}
    return Call("GET", f"{WIDGETS}?labelSelector={selector}", expects={"items.#": len(names), **expects})


LISTS = [
    row(
        "a list",
        *LABELLED,
        Call(
            "GET",
            WIDGETS,
            expects={
                "kind": "WidgetList",
                "apiVersion": "conformance.trainop.dev/v1",
                "metadata.resourceVersion": Text(r"^\d+$"),
                "metadata.continue": "",
                "items.#": 3,
                "items.0.metadata.name": "a",
                "items.0.kind": "Widget",
            },
        ),
    ),
    row(
        "items of core lists do not repeat their kind",
        Call("POST", MAPS, config_map(), 201),
        Call("GET", f"{MAPS}?labelSelector=!x", expects={"kind": "ConfigMapList", "items.0.kind": ABSENT}),
    ),
    row("label equality", *LABELLED, selects("env=dev", "a"), selects("env==prod,tier=web", "b")),
    row("label inequality", *LABELLED, selects("env!=dev", "b", "c")),
    row("label sets", *LABELLED, selects("env in (dev,prod)", "a", "b"), selects("env notin (dev)", "b", "c")),
    row("label existence", *LABELLED, selects("tier", "b"), selects("!env", "c")),
    row(
        "a bad label selector",
        Call(
            "GET", f"{MAPS}?labelSelector=a in", None, 400, {"reason": "BadRequest", "message": Text("unable to pars")}
        ),
    ),
    row(
        "fields of metadata",
        *LABELLED,
        Call("GET", f"{WIDGETS}?fieldSelector=metadata.name=b", expects={"items.#": 1, "items.0.metadata.name": "b"}),
        Call(
            "GET",
            "/apis/conformance.trainop.dev/v1/widgets?fieldSelector=metadata.namespace=$ns,metadata.name!=b",
            expects={"items.#": 2},
        ),
    ),
    row(
        "a field that cannot be selected",
        Call("GET", f"{WIDGETS}?fieldSelector=spec.size=1", None, 400, {"reason": "BadRequest"}),
        Call("GET", f"{PODS}?fieldSelector=spec.priority=1", None, 400, {"message": Text("field label not supported")}),
    ),
    row(
        "pods of a node",
        Call("POST", PODS, pod("p1", nodeName="n1"), 201),
        Call("POST", PODS, pod("p2"), 201),
        Call("GET", f"{PODS}?fieldSelector=spec.nodeName=n1", expects={"items.#": 1, "items.0.metadata.name": "p1"}),
        Call("GET", f"{PODS}?fieldSelector=spec.nodeName=", expects={"items.#": 1, "items.0.metadata.name": "p2"}),
    ),
    row(
        "pages of one moment",
        *LABELLED,
        Call(
            "GET",
            f"{WIDGETS}?limit=2",
            expects={"items.#": 2, "metadata.remainingItemCount": 1, "metadata.continue": PRESENT},
            keeps={"next": "metadata.continue", "rv": "metadata.resourceVersion"},
        ),
        Call("DELETE", f"{WIDGETS}/c", None, 200),
        Call("POST", WIDGETS, widget("d"), 201),
        Call(
            "GET",
            f"{WIDGETS}?limit=2&continue=$next",
            expects={"items.#": 1, "items.0.metadata.name": "c", "metadata.resourceVersion": "$rv"},
        ),
    ),
    row(
        "pages whose moment is forgotten",
        *LABELLED,
        Call("GET", f"{WIDGETS}?limit=2", keeps={"next": "metadata.continue"}),
        Call("DELETE", f"{WIDGETS}/c", None, 200),
        Compact(),
        Call(
            "GET",
            f"{WIDGETS}?limit=2&continue=$next",
            None,
            410,
            {"reason": "Expired", "code": 410, "metadata.continue": PRESENT, "message": Text("continue parameter")},
        ),
    ),
    row("a bad continuation", Call("GET", f"{WIDGETS}?limit=2&continue=xx", None, 400, {"reason": "BadRequest"})),
    row("lists from the cache", *LABELLED, Call("GET", f"{WIDGETS}?resourceVersion=0", expects={"items": PRESENT})),
    row("a bad version", Call("GET", f"{WIDGETS}?resourceVersion=abc", None, 400, {"reason": "BadRequest"})),
    row(
        "a version from the future",
        Call(
            "GET",
            f"{WIDGETS}?resourceVersion=999999999999&timeoutSeconds=1",
            None,
            504,
            {
                "reason": "Timeout",
                "message": Text("Too large resource version"),
                "details.causes.0.reason": "ResourceVersionTooLarge",
            },
        ),
    ),
    row(
        "resourceVersionMatch without a version",
        Call("GET", f"{WIDGETS}?resourceVersionMatch=Exact", None, 422, {"reason": "Invalid"}),
    ),
    row(
        "metadata only",
        *LABELLED,
        Call(
            "GET",
            WIDGETS,
            expects={"kind": "PartialObjectMetadataList", "items.0.metadata.name": "a", "items.0.spec": ABSENT},
            accept=PARTIAL_LIST,
        ),
        Call("GET", f"{WIDGETS}/a", expects={"kind": "PartialObjectMetadata", "spec": ABSENT}, accept=PARTIAL),
    ),
    row(
        "metadata only of what was written",
        Call("POST", PODS, pod(), 201, {"metadata.uid": PRESENT, "spec": ABSENT}, accept=PARTIAL),
        Call("POST", WIDGETS, widget(), 201, {"metadata.uid": PRESENT, "spec": ABSENT}, accept=PARTIAL),
        Call(
            "PATCH",
            f"{WIDGETS}/w",
            {"spec": {"size": 4}},
            expects={"kind": "PartialObjectMetadata", "metadata.resourceVersion": PRESENT, "spec": ABSENT},
            content_type=MERGE,
            accept=PARTIAL,
        ),
    ),
]

TABLES = [
    row(
        "table of a custom kind",
        Call("POST", WIDGETS, widget(spec={"color": "red", "size": 3}), 201),
        Call(
            "GET",
            WIDGETS,
            expects={
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "columnDefinitions.0.name": "Name",
                "columnDefinitions.1.name": "Color",
                "columnDefinitions.2": {"name": "Size", "type": "integer", "priority": 1},
                "columnDefinitions.3.name": "Age",
                "rows.0.cells.0": "w",
                "rows.0.cells.1": "red",
                "rows.0.cells.2": 3,
                "rows.0.object.kind": "PartialObjectMetadata",
                "rows.0.object.metadata.name": "w",
            },
            accept=TABLE,
        ),
        Call("GET", f"{WIDGETS}/w", expects={"kind": "Table", "rows.#": 1}, accept=TABLE),
        Call("GET", f"{WIDGETS}?includeObject=Object", expects={"rows.0.object.kind": "Widget"}, accept=TABLE),
        Call("GET", f"{WIDGETS}?includeObject=None", expects={"rows.0.object": None}, accept=TABLE),
    ),
    row(
        "table of pods",
        Call("POST", PODS, pod(), 201),
        Call(
            "GET",
            PODS,
            expects={
                "columnDefinitions.0.name": "Name",
                "columnDefinitions.1.name": "Ready",
                "columnDefinitions.2.name": "Status",
                "columnDefinitions.3.name": "Restarts",
                "columnDefinitions.4.name": "Age",
                "columnDefinitions.5": {"name": "IP", "priority": 1},
                "columnDefinitions.6": {"name": "Node", "priority": 1},
                "rows.0.cells.0": "p",
                "rows.0.cells.1": "0/1",
                "rows.0.cells.2": "Pending",
                "rows.0.cells.3": "0",
            },
            accept=TABLE,
        ),
    ),
    row(
        "table of jobs",
        Call("POST", JOBS, pytorch_job(), 201),
        Call(
            "GET",
            JOBS,
            expects={
                "columnDefinitions.0.name": "Name",
                "columnDefinitions.1.name": "State",
                "columnDefinitions.2.name": "Age",
                "rows.0.cells.0": "j",
            },
            accept=TABLE,
        ),
    ),
]

CHANGES = (
    Call("POST", WIDGETS, widget("x", {"size": 1}, labels={"see": "yes"}), 201),
    Call("PATCH", f"{WIDGETS}/x", {"spec": {"size": 2}}, content_type=MERGE),
    Call("DELETE", f"{WIDGETS}/x", None, 200),
)
NOW = Call("GET", WIDGETS, keeps={"rv": "metadata.resourceVersion"})

WATCHES = [
    row(
        "changes since a version",
        NOW,
        Watch(
            f"{WIDGETS}?watch=1&resourceVersion=$rv",
            CHANGES,
            (
                {"type": "ADDED", "object.kind": "Widget", "object.spec.size": 1},
                {"type": "MODIFIED", "object.spec.size": 2},
                {"type": "DELETED", "object.spec.size": 2, "object.metadata.resourceVersion": Text(r"^\d+$")},
            ),
        ),
    ),
    row(
        "changes that were made before are replayed",
        NOW,
        *CHANGES,
        Watch(
            f"{WIDGETS}?watch=true&resourceVersion=$rv",
            (),
            ({"type": "ADDED"}, {"type": "MODIFIED"}, {"type": "DELETED"}),
        ),
    ),
    row(
        "a watch without a version begins with what is there",
        *LABELLED,
        Watch(
            f"{WIDGETS}?watch=1&timeoutSeconds=1",
            (),
            tuple({"type": "ADDED", "object.metadata.name": name} for name in "abc"),
            ends=True,
        ),
    ),
    row(
        "a label selector sees objects come and go",
        NOW,
        Watch(
            f"{WIDGETS}?watch=1&resourceVersion=$rv&labelSelector=see=yes",
            (
                Call("POST", WIDGETS, widget("hidden"), 201),
                Call("POST", WIDGETS, widget("x", labels={"see": "yes"}), 201),
                Call("PATCH", f"{WIDGETS}/x", {"metadata": {"labels": {"see": "no"}}}, content_type=MERGE),
                Call("PATCH", f"{WIDGETS}/x", {"metadata": {"labels": {"see": "yes"}}}, content_type=MERGE),
            ),
            (
                {"type": "ADDED", "object.metadata.name": "x"},
                {"type": "DELETED", "object.metadata.labels.see": "yes"},
                {"type": "ADDED", "object.metadata.name": "x"},
            ),
        ),
    ),
    row(
        "one object by name",
        NOW,
        Watch(
            f"{WIDGETS}?watch=1&resourceVersion=$rv&fieldSelector=metadata.name=b",
            LABELLED,
            ({"type": "ADDED", "object.metadata.name": "b"},),
        ),
    ),
    row("a watch ends in time", NOW, Watch(f"{WIDGETS}?watch=1&resourceVersion=$rv&timeoutSeconds=1", ends=True)),
    row(
        "streaming list",
        *LABELLED,
        Watch(
            f"{WIDGETS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
            (),
            (
                *({"type": "ADDED", "object.metadata.name": name} for name in "abc"),
                {
                    "type": "BOOKMARK",
                    "object.kind": "Widget",
                    "object.metadata.annotations.k8s/io~initial-events-end": "true",
                    "object.metadata.resourceVersion": Text(r"^\d+$"),
                },
            ),
        ),
    ),
    row(
        "streaming list of nothing, then changes",
        Watch(
            f"{WIDGETS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
            (),
            ({"type": "BOOKMARK", "object.metadata.annotations.k8s/io~initial-events-end": "true"},),
        ),
    ),
    row(
        "streaming list needs resourceVersionMatch",
        Call("GET", f"{WIDGETS}?watch=1&sendInitialEvents=true", None, 422, {"reason": "Invalid"}),
    ),
    row(
        "a bookmark before the end of a watch tells what has passed unseen",
        NOW,
        Watch(
            f"{WIDGETS}?watch=1&resourceVersion=$rv&allowWatchBookmarks=true&timeoutSeconds=4&labelSelector=no=such",
            LABELLED,
            ({"type": "BOOKMARK", "object.metadata.resourceVersion": Text(r"^\d+$")},),
        ),
    ),
    row(
        "a version that is forgotten",
        *LABELLED,
        Compact(),
        Watch(
            f"{WIDGETS}?watch=1&resourceVersion=1",
            (),
            (
                {
                    "type": "ERROR",
                    "object": {
                        "kind": "Status",
                        "code": 410,
                        "reason": "Expired",
                        "message": Text("too old resource ve"),
                    },
                },
            ),
            ends=True,
        ),
    ),
    row(
        "a watch of tables",
        NOW,
        Watch(
            f"{WIDGETS}?watch=1&resourceVersion=$rv",
            CHANGES[:2],
            (
                {
                    "type": "ADDED",
                    "object.kind": "Table",
                    "object.rows.0.cells.0": "x",
                    "object.columnDefinitions": PRESENT,
                },
                {"type": "MODIFIED", "object.kind": "Table"},
            ),
            accept=TABLE,
        ),
    ),
    row(
        "a pod's deletion: marked, no grace left, gone",
        Call("GET", PODS, keeps={"rv": "metadata.resourceVersion"}),
        Watch(
            f"{PODS}?watch=1&resourceVersion=$rv",
            (
                Call("POST", PODS, pod(nodeName="n1"), 201),
                Call("DELETE", f"{PODS}/p", None, 200),
                Call("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0}, 200),
            ),
            (
                {"type": "ADDED", "object.metadata.deletionTimestamp": ABSENT},
                {"type": "MODIFIED", "object.metadata.deletionGracePeriodSeconds": 30},
                {"type": "MODIFIED", "object.metadata.deletionGracePeriodSeconds": 0},
                {"type": "DELETED", "object.metadata.deletionTimestamp": PRESENT},
            ),
        ),
    ),
]

ROWS: list[Row] = [*LISTS, *TABLES, *WATCHES]
