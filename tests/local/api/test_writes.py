"""Create, read, replace and patch: stored objects, and refusals with the messages of kube-apiserver."""

from __future__ import annotations

from typing import Any

import pytest

from tests.local.api.support import (
    APPLY,
    CONFIG_MAPS,
    JSON_PATCH,
    MERGE,
    PODS,
    SERVICES,
    STRATEGIC,
    Api,
    config_map,
    pod,
)


@pytest.fixture
def api() -> Api:
    return Api()


def containers(*given: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a"}, "spec": {"containers": list(given), **spec}}


SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
C = {"name": "c", "image": "i"}

# path, body, code, reason, message; each as kube-apiserver 1.34 answers
REFUSED: list[tuple[str, Any, int, str, str]] = [
    (
        PODS,
        {},
        422,
        "Invalid",
        (
            'Pod "" is invalid: [metadata.name: Required value: name or generateName is required, '
            "spec.containers: Required value]"
        ),
    ),
    (
        PODS,
        {"metadata": {"name": "A_b"}},
        422,
        "Invalid",
        f'Pod "A_b" is invalid: [metadata.name: Invalid value: "A_b": {SUBDOMAIN}, spec.containers: Required value]',
    ),
    (PODS, containers({"image": "i"}), 422, "Invalid", 'Pod "a" is invalid: spec.containers[0].name: Required value'),
    (PODS, containers({"name": "c"}), 422, "Invalid", 'Pod "a" is invalid: spec.containers[0].image: Required value'),
    (
        PODS,
        containers(C, C),
        422,
        "Invalid",
        'Pod "a" is invalid: spec.containers[1].name: Duplicate value: "c"',
    ),
    (
        PODS,
        containers(C, restartPolicy="No"),
        422,
        "Invalid",
        (
            'Pod "a" is invalid: spec.restartPolicy: Unsupported value: "No": '
            'supported values: "Always", "OnFailure", "Never"'
        ),
    ),
    (
        PODS,
        containers({**C, "ports": [{"containerPort": 70000}]}),
        422,
        "Invalid",
        (
            'Pod "a" is invalid: spec.containers[0].ports[0].containerPort: Invalid value: 70000: '
            "must be between 1 and 65535, inclusive"
        ),
    ),
    (
        PODS,
        containers({**C, "ports": [{"containerPort": "x"}]}),
        400,
        "BadRequest",
        (
            'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal string into Go struct field '
            "ContainerPort.spec.containers.ports.containerPort of type int32"
        ),
    ),
    (
        PODS,
        {"metadata": {"name": "a", "labels": "x"}},
        400,
        "BadRequest",
        (
            'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal string into Go struct field '
            "ObjectMeta.metadata.labels of type map[string]string"
        ),
    ),
    (
        PODS,
        {"metadata": {"name": "a", "namespace": "kube-system"}},
        400,
        "BadRequest",
        "the namespace of the provided object does not match the namespace sent on the request",
    ),
    (
        PODS,
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}},
        400,
        "BadRequest",
        'Service in version "v1" cannot be handled as a Pod: converting (v1.Service) to (core.Pod): unknown conversion',
    ),
    ("/api/v1/namespaces/missing/pods", pod(), 404, "NotFound", 'namespaces "missing" not found'),
    (
        SERVICES,
        {"metadata": {"name": "a"}, "spec": {"ports": [{"port": 1}, {"port": 2}]}},
        422,
        "Invalid",
        'Service "a" is invalid: [spec.ports[0].name: Required value, spec.ports[1].name: Required value]',
    ),
    (
        SERVICES,
        {"metadata": {"name": "1a"}, "spec": {"ports": [{"port": 1}]}},
        422,
        "Invalid",
        (
            'Service "1a" is invalid: metadata.name: Invalid value: "1a": a DNS-1035 label must consist of lower case '
            "alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric "
            "character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
        ),
    ),
    (
        "/api/v1/namespaces",
        {"metadata": {"name": "a.b"}},
        422,
        "Invalid",
        'Namespace "a.b" is invalid: metadata.name: Invalid value: "a.b": must not contain dots',
    ),
    (
        "/apis/coordination.k8s.io/v1/namespaces/default/leases",
        {"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 0}},
        422,
        "Invalid",
        'Lease.coordination.k8s.io "l" is invalid: spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0',
    ),
    (
        "/api/v1/namespaces/default/events",
        {"metadata": {"name": "e"}, "involvedObject": {"namespace": "x"}},
        422,
        "Invalid",
        'Event "e" is invalid: involvedObject.namespace: Invalid value: "x": does not match event.namespace',
    ),
    (
        CONFIG_MAPS,
        {"metadata": {"name": "c", "finalizers": ["a"]}},
        422,
        "Invalid",
        (
            'ConfigMap "c" is invalid: metadata.finalizers[0]: Invalid value: "a": '
            "name is neither a standard finalizer name nor is it fully qualified"
        ),
    ),
    (
        "/api/v1/namespaces/default/secrets",
        {"metadata": {"name": "s"}, "data": {"x": "!!"}},
        400,
        "BadRequest",
        'Secret in version "v1" cannot be handled as a Secret: illegal base64 data at input byte 0',
    ),
    ("/api/v1/pods", pod(), 405, "MethodNotAllowed", "the server does not allow this method on the requested resource"),
    ("/api/v1/namespaces/default/foos", {}, 404, "NotFound", "the server could not find the requested resource"),
]


@pytest.mark.parametrize(("path", "body", "code", "reason", "message"), REFUSED)
async def test_refuses_with_the_words_of_the_api_server(
    api: Api, path: str, body: Any, code: int, reason: str, message: str
):
    answer = await api("POST", path, body)
    status = answer.json
    assert (answer.code, status["code"], status["reason"], status["message"]) == (code, code, reason, message)
    assert (status["kind"], status["status"]) == ("Status", "Failure")


async def test_names_every_cause(api: Api):
    answer = await api("POST", PODS, {"metadata": {"name": "a"}, "spec": {"containers": [{}]}})
    assert answer.json["details"] == {
        "name": "a",
        "kind": "Pod",
        "causes": [
            {"reason": "FieldValueRequired", "message": "Required value", "field": "spec.containers[0].name"},
            {"reason": "FieldValueRequired", "message": "Required value", "field": "spec.containers[0].image"},
        ],
    }


async def test_completes_a_pod(api: Api):
    made = await api.create(PODS, pod("a", uid="mine", generation=9), fieldManager="me")
    assert made["metadata"]["uid"] != "mine"
    assert made["metadata"]["generation"] == 1
    assert made["metadata"]["creationTimestamp"] == "2026-01-02T03:04:05Z"
    assert made["metadata"]["managedFields"][0]["manager"] == "me"
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    spec = made["spec"]
    assert (spec["restartPolicy"], spec["dnsPolicy"], spec["terminationGracePeriodSeconds"]) == (
        "Always",
        "ClusterFirst",
        30,
    )
    assert spec["containers"][0]["terminationMessagePath"] == "/dev/termination-log"
    assert (await api("GET", f"{PODS}/a")).json == made


async def test_gives_limits_as_requests_in_canonical_form(api: Api):
    body = containers({**C, "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi", "nvidia.com/gpu": 1}}})
    made = await api.create(PODS, body)
    amounts = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    assert made["spec"]["containers"][0]["resources"] == {"limits": amounts, "requests": amounts}
    assert made["status"]["qosClass"] == "Guaranteed"


async def test_generates_names(api: Api):
    names = {
        (await api.create(CONFIG_MAPS, {"metadata": {"generateName": "x-"}}))["metadata"]["name"] for _ in range(5)
    }
    assert len(names) == 5
    assert all(name.startswith("x-") and len(name) == 7 for name in names)


async def test_a_name_is_taken_once(api: Api):
    await api.create(CONFIG_MAPS, config_map())
    answer = await api("POST", CONFIG_MAPS, config_map())
    assert (answer.code, answer.json["reason"], answer.json["message"]) == (
        409,
        "AlreadyExists",
        'configmaps "c" already exists',
    )


async def test_every_write_raises_the_version_and_only_a_change_is_a_write(api: Api):
    first = await api.create(CONFIG_MAPS, config_map())
    same = (await api.patch(f"{CONFIG_MAPS}/c", {"data": {"a": "b"}})).json
    other = (await api.patch(f"{CONFIG_MAPS}/c", {"data": {"a": "c"}})).json
    versions = [int(each["metadata"]["resourceVersion"]) for each in (first, same, other)]
    assert versions[0] == versions[1] < versions[2]


async def test_dry_run_stores_nothing(api: Api):
    await api.create(CONFIG_MAPS, config_map(), dryRun="All")
    assert (await api("GET", f"{CONFIG_MAPS}/c")).code == 404
    await api.create(CONFIG_MAPS, config_map())
    patched = await api.patch(f"{CONFIG_MAPS}/c", {"data": {"a": "z"}}, dryRun="All")
    assert patched.json["data"] == {"a": "z"}
    await api("DELETE", f"{CONFIG_MAPS}/c", dryRun="All")
    assert (await api("GET", f"{CONFIG_MAPS}/c")).json["data"] == {"a": "b"}


async def test_replaces_only_the_version_that_was_read(api: Api):
    read = await api.create(CONFIG_MAPS, config_map())
    assert (await api("PUT", f"{CONFIG_MAPS}/c", {**read, "data": {"a": "c"}})).code == 200
    late = await api("PUT", f"{CONFIG_MAPS}/c", {**read, "data": {"a": "d"}})
    assert (late.code, late.json["message"]) == (
        409,
        (
            'Operation cannot be fulfilled on configmaps "c": the object has been modified; '
            "please apply your changes to the latest version and try again"
        ),
    )
    other = {"metadata": {"name": "c", "uid": "other"}}
    assert (await api("PUT", f"{CONFIG_MAPS}/c", other)).json["reason"] == "Conflict"
    assert (await api("PUT", f"{CONFIG_MAPS}/d", config_map("d"))).code == 404


@pytest.mark.parametrize(
    ("content_type", "patch", "code", "labels"),
    [
        (MERGE, {"metadata": {"labels": {"a": None, "b": "2"}}}, 200, {"b": "2"}),
        (STRATEGIC, {"metadata": {"labels": {"$patch": "replace", "c": "3"}}}, 200, {"c": "3"}),
        (JSON_PATCH, [{"op": "replace", "path": "/metadata/labels/a", "value": "9"}], 200, {"a": "9"}),
        (JSON_PATCH, [{"op": "test", "path": "/kind", "value": "x"}], 422, {"a": "1"}),
        (MERGE, {"metadata": {"resourceVersion": "1"}}, 409, {"a": "1"}),
        (MERGE, {"metadata": {"name": "x"}}, 400, {"a": "1"}),
        (MERGE, b"{", 400, {"a": "1"}),
        ("application/json", {}, 415, {"a": "1"}),
    ],
)
async def test_patches(api: Api, content_type: str, patch: Any, code: int, labels: dict[str, str]):
    await api.create(CONFIG_MAPS, config_map(labels={"a": "1"}))
    assert (await api.patch(f"{CONFIG_MAPS}/c", patch, content_type)).code == code
    assert (await api("GET", f"{CONFIG_MAPS}/c")).json["metadata"]["labels"] == labels


async def test_applies_and_reports_conflicts(api: Api):
    wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}
    made = await api.patch(f"{CONFIG_MAPS}/c", wanted, APPLY, fieldManager="one")
    assert made.code == 201
    again = await api.patch(f"{CONFIG_MAPS}/c", wanted, APPLY, fieldManager="one")
    assert again.json["metadata"]["resourceVersion"] == made.json["metadata"]["resourceVersion"]
    other = {**wanted, "data": {"a": "2"}}
    refused = await api.patch(f"{CONFIG_MAPS}/c", other, APPLY, fieldManager="two")
    assert (refused.code, refused.json["reason"]) == (409, "Conflict")
    assert refused.json["details"]["causes"][0]["field"] == ".data.a"
    forced = await api.patch(f"{CONFIG_MAPS}/c", other, APPLY, fieldManager="two", force="true")
    assert forced.json["data"] == {"a": "2"}
    assert (await api.patch(f"{CONFIG_MAPS}/c", wanted, APPLY)).code == 422, "a field manager is required"


async def test_unknown_fields_are_dropped_warned_of_or_refused(api: Api):
    body = {**pod(), "odd": 1}
    warned = await api("POST", PODS, body, dryRun="All")
    assert warned.headers["warning"] == '299 - "unknown field \\"odd\\""'
    assert "odd" not in warned.json
    assert "warning" not in (await api("POST", PODS, body, dryRun="All", fieldValidation="Ignore")).headers
    refused = await api("POST", PODS, body, fieldValidation="Strict")
    assert refused.json["message"] == (
        'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "odd"'
    )
    twice = b'{"metadata":{"name":"a","name":"b"}}'
    assert (
        'duplicate field "metadata.name"' in (await api("POST", PODS, twice, fieldValidation="Strict")).json["message"]
    )


async def test_a_pod_keeps_what_it_was_made_of(api: Api):
    await api.create(PODS, pod("a"))
    assert (
        await api.patch(f"{PODS}/a", {"spec": {"containers": [{"name": "c", "image": "j"}]}}, STRATEGIC)
    ).code == 200
    refused = await api.patch(f"{PODS}/a", {"spec": {"nodeName": "n"}})
    assert (refused.code, refused.json["details"]["causes"][0]["field"]) == (422, "spec")


async def test_status_and_the_rest_are_written_apart(api: Api):
    await api.create(PODS, {**pod("a"), "status": {"phase": "Running"}})
    assert (await api("GET", f"{PODS}/a")).json["status"]["phase"] == "Pending"
    await api.patch(f"{PODS}/a", {"status": {"phase": "Running"}})
    assert (await api("GET", f"{PODS}/a")).json["status"]["phase"] == "Pending"
    done = await api.patch(f"{PODS}/a/status", {"status": {"phase": "Running"}, "spec": {"nodeName": "n"}})
    assert done.json["status"] == {"phase": "Running", "qosClass": "BestEffort"}
    assert "nodeName" not in done.json["spec"]


async def test_secrets_take_plain_text_and_keep_base64(api: Api):
    made = await api.create("/api/v1/namespaces/default/secrets", {"metadata": {"name": "s"}, "stringData": {"a": "b"}})
    assert (made["data"], made["type"], "stringData" in made) == ({"a": "Yg=="}, "Opaque", False)


async def test_services_get_an_address_that_stays(api: Api):
    made = await api.create(SERVICES, {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}})
    address = made["spec"]["clusterIP"]
    assert made["spec"]["clusterIPs"] == [address]
    assert address.startswith("10.96.")
    assert made["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    changed = await api.patch(f"{SERVICES}/s", {"spec": {"clusterIP": "10.96.1.1"}})
    assert changed.json["message"] == (
        'Service "s" is invalid: spec.clusterIPs[0]: Invalid value: ["10.96.1.1"]: may not change once set'
    )
    headless = await api.create(SERVICES, {"metadata": {"name": "h"}, "spec": {"clusterIP": "None"}})
    assert headless["spec"]["clusterIPs"] == ["None"]
    taken = {"metadata": {"name": "t"}, "spec": {"clusterIP": address, "ports": [{"port": 80}]}}
    assert "already allocated" in (await api("POST", SERVICES, taken)).json["message"]


async def test_a_put_creates_where_the_api_server_does(api: Api):
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l"
    assert (await api("PUT", path, {"metadata": {"name": "l"}, "spec": {}})).code == 201
    assert (await api("PUT", path, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "x"}})).code == 200


async def test_immutable_config_maps_stay(api: Api):
    await api.create(CONFIG_MAPS, {**config_map(), "immutable": True})
    refused = await api.patch(f"{CONFIG_MAPS}/c", {"data": {"x": "y"}})
    assert refused.json["message"] == (
        'ConfigMap "c" is invalid: data: Forbidden: field is immutable when `immutable` is set'
    )


async def test_events_have_two_apis(api: Api):
    about = {"kind": "Pod", "namespace": "default", "name": "p"}
    body = {"metadata": {"name": "e"}, "involvedObject": about, "message": "hello", "count": 2}
    await api.create("/api/v1/namespaces/default/events", body)
    newer = (await api("GET", "/apis/events.k8s.io/v1/namespaces/default/events/e")).json
    assert (newer["apiVersion"], newer["regarding"], newer["note"], newer["deprecatedCount"]) == (
        "events.k8s.io/v1",
        about,
        "hello",
        2,
    )


async def test_understands_yaml_both_ways(api: Api):
    body = b"metadata:\n  name: y\ndata:\n  date: '2026-01-01'\n"
    made = await api("POST", CONFIG_MAPS, body, "application/yaml", accept="application/yaml")
    assert made.code == 201
    assert b"date: '2026-01-01'" in made.raw
