"""Replays the requests in `recorded/*.json` against a real kube-apiserver, and records the responses.

python -m tests.local.semantics.record            rewrites the files; review the difference before committing it
python -m tests.local.semantics.record --check    only compares; on a difference, prints the first ones and exits with 1

The requests are those in the files; to add one, write it there without its response. Values that the server generates
(UIDs, versions, times) and defaults of pods are left out.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from e2e.cluster.api import Answer, Api
from e2e.cluster.components import ClusterOptions
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from e2e.cluster.places import default_data
from e2e.cluster.releases import NEWEST
from tests.local.semantics.recordings import FOLDER, recorded

Json: TypeAlias = dict[str, Any]
TIME = "2026-01-01T00:00:00Z"
"""Placeholder for the time of a write."""
CONTENT = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
CLOCKED = {"Age", "Last Seen", "First Seen"}
"""Columns that depend on the moment at which the table was asked for."""
CHOSEN = ("uid", "resourceVersion", "creationTimestamp", "generation", "selfLink")
DEFAULTS: Json = {
    "dnsPolicy": "ClusterFirst",
    "restartPolicy": "Always",
    "schedulerName": "default-scheduler",
    "securityContext": {},
    "terminationGracePeriodSeconds": 30,
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "imagePullPolicy": ("Always", "IfNotPresent"),
    "protocol": "TCP",
    "defaultMode": 420,
    "resources": {},
    "type": "",
}
"""What the API server fills into a pod's spec: field -> value or values."""


def place(group: str, kind: str, version: str = "v1") -> str:
    """The path of a kind's collection in namespace `default`."""
    plural = {"PodTemplate": "podtemplates"}.get(kind, kind.lower() + "s")
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    scoped = kind not in {"Node", "Namespace", "CustomResourceDefinition"}
    return f"{root}/namespaces/default/{plural}" if scoped else f"{root}/{plural}"


def read(answer: Answer) -> Any:
    """The body of an answer that must be a success."""
    assert 200 <= answer.status < 300, answer
    return answer.body


def without(value: Mapping[str, Any], *names: str) -> Json:
    return {name: each for name, each in value.items() if name not in names}


def definition(schema: Json) -> Json:
    names = {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.test.trainop"},
        "spec": {
            "group": "test.trainop",
            "scope": "Namespaced",
            "names": names,
            "versions": [{**version, "subresources": {"status": {}}}],
        },
    }


def refusal(answer: Answer) -> tuple[str, list[Json]]:
    return answer.body["message"], (answer.body.get("details") or {}).get("causes", [])


# Schemas --------------------------------------------------------------------------------------------------------------


def record_schema(api: Api, known: Json) -> Json:
    """Create each body with dry run, so that it is refused or defaulted without being stored."""
    path = f"{place('test.trainop', 'Thing')}?dryRun=All&fieldValidation=Strict"
    head = {"apiVersion": "test.trainop/v1", "kind": "Thing", "metadata": {"name": "x"}}
    answers = []
    for case in known["answers"]:
        answer = api("POST", path, {**head, **case["body"]})
        if answer.status == 201:
            reported: Any = answer.body.get("spec")
        else:
            message, causes = refusal(answer)
            reported = {"message": message, "causes": [[c["reason"], c["message"], c["field"]] for c in causes]}
        answers.append({"body": case["body"], "code": answer.status, "answer": reported})
    return {"schema": known["schema"], "answers": answers}


# Server-side apply ----------------------------------------------------------------------------------------------------


def tidy(value: Json) -> Json:
    """A stored object without what the server chose, and with one time in managedFields."""
    value = copy.deepcopy(value)
    value["metadata"] = without(value["metadata"], *CHOSEN)
    for entry in value["metadata"].get("managedFields", ()):
        if "time" in entry:  # the entry for fields from before the first apply has none
            entry["time"] = TIME
    return value


def record_apply(api: Api, known: list[Json]) -> list[Json]:
    return [{**scenario, "steps": list(record_steps(api, scenario))} for scenario in known]


def record_steps(api: Api, scenario: Json) -> Iterator[Json]:
    """Apply one object step by step; a step with a different initial object creates that first."""
    path = place("test.trainop" if scenario["kind"] == "Thing" else "", scenario["kind"])
    stored: Json | None = None
    left: Json | None = None  # as the recording has it
    for step in scenario["steps"]:
        if step["before"] != left and step["before"] is not None:
            stored = prepare(api, path, step["before"])
        left = step["after"] if step["code"] < 300 else step["before"]
        answer = take(api, path, step)
        done = {**step, "before": stored, "code": answer.status}
        if answer.status < 300:
            stored = tidy(answer.body)
            done["after"] = stored
        else:
            message, causes = refusal(answer)
            done["after"] = {"message": message, "causes": causes}
        yield done
    read(api("DELETE", f"{path}/x"))


def prepare(api: Api, path: str, wanted: Json) -> Json:
    """Create the initial object of a step from the fields of its only manager; the server adds the rest."""
    api("DELETE", f"{path}/x")
    (owner,) = wanted["metadata"]["managedFields"]
    named = {name.removeprefix("f:") for name in owner["fieldsV1"].get("f:spec", {})}
    body = copy.deepcopy(wanted)
    if "spec" in body:
        body["spec"] = {name: value for name, value in body["spec"].items() if name in named}
    return tidy(read(api("POST", f"{path}?fieldManager={owner['manager']}", body)))


def take(api: Api, path: str, step: Json) -> Answer:
    query = f"fieldManager={step['manager']}"
    if step["op"] == "create":
        return api("POST", f"{path}?{query}", step["body"])
    if step["op"] == "apply":
        query += f"&force={json.dumps(step['force'])}"
    subresource = f"/{step['subresource']}" if step["subresource"] else ""
    return api("PATCH", f"{path}/x{subresource}?{query}", step["body"], CONTENT[step["op"]])


# Strategic merge patches ----------------------------------------------------------------------------------------------


def record_strategic(api: Api, known: Json) -> Json:
    path = place("", "PodTemplate")
    read(api("POST", path, known["current"]))
    cases = []
    for case in known["cases"]:
        answer = api("PATCH", f"{path}/t?dryRun=All", case["patch"], CONTENT["strategic"])
        result = read(answer)
        result["metadata"] = without(result["metadata"], *CHOSEN, "managedFields")
        result["template"]["metadata"] = without(result["template"]["metadata"], "creationTimestamp")
        result["template"]["spec"] = plain(result["template"]["spec"])
        cases.append({"patch": case["patch"], "result": result})
    return {"current": known["current"], "cases": cases}


def plain(value: Any) -> Any:
    """A pod's spec without defaults."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: plain(one) for name, one in value.items() if not is_default(name, one)}


def is_default(name: str, value: Any) -> bool:
    default = DEFAULTS.get(name, value is None)
    return value in default if isinstance(default, tuple) else name in DEFAULTS and bool(value == default)


# Tables ---------------------------------------------------------------------------------------------------------------


def record_tables(api: Api, known: list[Json]) -> list[Json]:
    """The objects in the recordings are made, and their tables asked for."""
    return [record_table(api, table) for table in known]


def record_table(api: Api, known: Json) -> Json:
    path = place(known["group"], known["kind"])
    for row in known["rows"]:
        make(api, path, known, row["object"])
    accept = "application/json;as=Table;g=meta.k8s.io;v=v1"
    table = read(api("GET", path, accept=accept))
    shown = {row["object"]["metadata"]["name"]: row for row in table["rows"]}
    rows = []
    for row in known["rows"]:
        name = row["object"]["metadata"]["name"]
        seen = read(api("GET", f"{path}/{name}"))["metadata"]
        times = {key: seen[key] for key in ("creationTimestamp", "deletionTimestamp") if key in seen}
        value = {**row["object"], "metadata": {**row["object"]["metadata"], **times}}
        rows.append({"cells": shown[name]["cells"], "object": value})
    columns = [
        {name: column[name] for name in ("name", "type", "format", "priority")} for column in table["columnDefinitions"]
    ]
    return {"group": known["group"], "kind": known["kind"], "columns": columns, "rows": rows}


def make(api: Api, path: str, known: Json, value: Json) -> None:
    """The object of a row, unless the server has made it by itself."""
    name = value["metadata"]["name"]
    if api("GET", f"{path}/{name}").status == 200:
        return
    version = f"{known['group']}/v1" if known["group"] else "v1"
    body = {"apiVersion": version, "kind": known["kind"], **without(copy.deepcopy(value), "status")}
    for which in ("containers", "initContainers"):
        for container in body.get("spec", {}).get(which, ()):
            container["image"] = "i"
    read(api("POST", path, body))
    if "status" in value:
        status = without(value["status"], "qosClass")
        read(api("PATCH", f"{path}/{name}/status", {"status": status}, CONTENT["merge"]))
    if "deletionTimestamp" in value["metadata"]:
        read(api("DELETE", f"{path}/{name}"))


# All of them ----------------------------------------------------------------------------------------------------------

RECORDERS: dict[str, Callable[[Api, Any], Any]] = {
    "schema": record_schema,
    "apply": record_apply,
    "strategic": record_strategic,
    "tables": record_tables,
}


def record(api: Api, crds: list[Json]) -> dict[str, Any]:
    """File name -> its content with the responses of this server, which must be new and empty."""
    for crd in [definition(recorded("schema")["schema"]), *crds]:
        read(api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd))
    assert wait_until(lambda: api("GET", place("test.trainop", "Thing")).status == 200, 60), "the CRD is not served"
    return {name: recorder(api, recorded(name)) for name, recorder in RECORDERS.items()}


def comparable(name: str, content: Any) -> Any:
    """The content without time-dependent parts: ages and timestamps in tables, the order of managers."""
    content = copy.deepcopy(content)
    if name == "apply":
        for step in (step for scenario in content for step in scenario["steps"]):
            for value in (step["before"], step["after"]):
                managers = ((value or {}).get("metadata") or {}).get("managedFields", [])
                managers.sort(key=lambda entry: json.dumps(entry, sort_keys=True))
    if name == "tables":
        for table in content:
            titles = [column["name"] for column in table["columns"]]
            for row in table["rows"]:
                row["cells"] = [
                    None if title in CLOCKED | {"Created At"} or " ago)" in str(cell) else cell
                    for title, cell in zip(titles, row["cells"], strict=True)
                ]
                row["object"]["metadata"] = without(row["object"]["metadata"], "creationTimestamp", "deletionTimestamp")
    return content


def differences(fresh: Mapping[str, Any]) -> list[str]:
    """The paths at which the files and the server differ."""
    found: list[str] = []
    for name, content in fresh.items():
        found += unequal(comparable(name, recorded(name)), comparable(name, content), name)
    return found


def unequal(old: Any, new: Any, at: str) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return [line for key in {**old, **new} for line in unequal(old.get(key), new.get(key), f"{at}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [line for n, pair in enumerate(zip(old, new, strict=True)) for line in unequal(*pair, f"{at}.{n}")]
    return [] if old == new else [f"{at}: recorded {json.dumps(old)}, answered {json.dumps(new)}"]


@contextmanager
def fresh_server() -> Iterator[Api]:
    plane = ControlPlane(default_data(f"pytest-{os.getpid()}-recordings"), die_with_parent=True)
    plane.up(ClusterOptions(release=NEWEST.name))
    try:
        yield plane.api
    finally:
        plane.down()


def main() -> int:
    from tests.conftest import read_crds  # noqa: PLC0415  it brings pytest, which the test of this module has

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    with fresh_server() as api:
        fresh = record(api, read_crds())
    found = differences(fresh)
    sys.stdout.write("".join(f"{line[:400]}\n" for line in found[:20]))
    if check:
        return 1 if found else 0
    for name, content in fresh.items():
        form: Json = {"indent": 1} if name == "schema" else {"separators": (",", ":")}
        (FOLDER / f"{name}.json").write_text(json.dumps(content, **form) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
