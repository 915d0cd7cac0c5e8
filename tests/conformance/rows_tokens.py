"""Rows about tokens of service accounts: TokenRequest, TokenReview, requests with a token, and projected volumes.

A server without controllers has no account `default`, so that rows create an account. kube-apiserver remembers for ten
seconds that it has accepted a token, so that a token whose object is deleted is reviewed until it is refused.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.conformance.client import (
    ABSENT,
    PRESENT,
    Backend,
    Call,
    Row,
    Step,
    Text,
    Until,
    Variables,
    differences,
    fill,
    row,
)
from tests.conformance.objects import CORE, PODS, pod
from tests.patience import PATIENCE

API = "https://kubernetes.default.svc.cluster.local"
ACCOUNTS = f"{CORE}/serviceaccounts"
TOKENS = f"{ACCOUNTS}/sa/token"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
POD = {"apiVersion": "v1", "kind": "Pod", "name": "p"}
EXTRA = "status.user.extra.authentication/kubernetes/io~"
JTI = Text("^JTI=[0-9a-f-]{36}$")


def _part(token: str, at: int) -> Any:
    text = token.split(".")[at]
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def _encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@dataclass(frozen=True)
class Claims:
    """Compares the claims of the token `$token`; `lifetime` is in seconds."""

    expects: Mapping[str, Any]
    lifetime: int = 3600

    def take(self, backend: Backend, variables: Variables) -> None:
        claims = _part(variables["token"], 1)
        assert differences(claims, fill(self.expects, variables)) == [], claims
        assert claims["exp"] - claims["iat"] == self.lifetime
        assert claims["nbf"] == claims["iat"]
        assert abs(claims["iat"] - time.time()) < PATIENCE


@dataclass(frozen=True)
class Altered:
    """Replaces `$token` by what `change` makes of it."""

    change: Callable[[str], str]

    def take(self, backend: Backend, variables: Variables) -> None:
        variables["token"] = self.change(variables["token"])


@dataclass(frozen=True)
class Signed:
    """Replaces `$token` by one with other claims that is signed with the server's key; None removes a claim."""

    claims: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, int] = field(default_factory=dict)
    """Claims that are times, from now."""

    def take(self, backend: Backend, variables: Variables) -> None:
        now = int(time.time())
        own = fill(self.claims, variables)
        claims = {**_part(variables["token"], 1), **own, **{name: now + by for name, by in self.seconds.items()}}
        variables["token"] = backend.sign({name: value for name, value in claims.items() if value is not None})


@dataclass(frozen=True)
class Bearer:
    """A request with the token `$token` and no other credentials."""

    method: str
    path: str
    refused: bool
    expects: Mapping[str, Any] = field(default_factory=dict)

    def take(self, backend: Backend, variables: Variables) -> None:
        parts = urlsplit(backend.url)
        assert parts.hostname
        unverified = ssl.create_default_context()
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=PATIENCE, context=unverified)
        headers = {"Authorization": f"Bearer {variables['token']}", "Content-Type": "application/json"}
        try:
            body = "{}" if self.method == "POST" else None
            connection.request(self.method, fill(self.path, variables), body, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        assert (response.status == 401) == self.refused, answer
        assert differences(answer, fill(self.expects, variables)) == [], answer


def request(**spec: Any) -> Call:
    """Gets the token `$token` of the account."""
    return Call("POST", TOKENS, {"spec": spec}, 201, keeps={"token": "status.token"})


def reject(code: int, message: str, spec: Any, path: str = TOKENS, **body: Any) -> Call:
    reason = {400: "BadRequest", 404: "NotFound", 409: "Conflict", 422: "Invalid"}[code]
    whole = {"spec": spec, **body}
    return Call("POST", path, whole, code, {"kind": "Status", "reason": reason, "message": Text(message)})


def review(audiences: list[str] | None, expects: Mapping[str, Any], token: str = "$token") -> Call:  # noqa: S107 - a variable
    spec = {"token": token} if audiences is None else {"token": token, "audiences": audiences}
    return Call("POST", REVIEWS, {"spec": spec}, 201, expects)


def accepted(audiences: list[str] | None, *, shown: list[str] | None = None) -> Call:
    name = "system:serviceaccount:$ns:sa"
    return review(
        audiences,
        {"status.authenticated": True, "status.user.username": name, "status.audiences": shown or audiences or [API]},
    )


def refused(error: str, audiences: list[str] | None = None) -> Call:
    """`error` is all that kube-apiserver says, but for its first words."""
    said = f"[invalid bearer token, {error}]" if error else "invalid bearer token"
    return review(
        audiences or ["job"],
        {"status.authenticated": ABSENT, "status.user": {}, "status.audiences": ABSENT, "status.error": said},
    )


ACCOUNT = Call("POST", ACCOUNTS, {"metadata": {"name": "sa"}}, 201, keeps={"account": "metadata.uid"})
IN_POD = Call("POST", PODS, pod(serviceAccountName="sa"), 201, keeps={"uid": "metadata.uid"})
BOUND = (ACCOUNT, IN_POD, request(audiences=["job"], boundObjectRef={**POD, "uid": "$uid"}))
SUBJECT = {"iss": API, "sub": "system:serviceaccount:$ns:sa", "jti": Text("^[0-9a-f-]{36}$")}
OF_ACCOUNT = {"namespace": "$ns", "serviceaccount": {"name": "sa", "uid": "$account"}}
OF_POD = {**OF_ACCOUNT, "pod": {"name": "p", "uid": "$uid"}}
UNAVAILABLE = "service account token has been invalidated"


def _resigned(token: str, **claims: Any) -> str:
    head, _, signature = token.split(".")
    return ".".join((head, _encoded({**_part(token, 1), **claims}), signature))


REQUESTS = [
    row(
        "a token of a pod",
        ACCOUNT,
        IN_POD,
        Call(
            "POST",
            TOKENS,
            {"spec": {"audiences": ["job"], "expirationSeconds": 700, "boundObjectRef": {**POD, "uid": "$uid"}}},
            201,
            {
                "kind": "TokenRequest",
                "apiVersion": "authentication.k8s.io/v1",
                "metadata.name": "sa",
                "metadata.namespace": "$ns",
                "metadata.uid": "$account",
                "metadata.creationTimestamp": PRESENT,
                "spec.audiences": ["job"],
                "spec.expirationSeconds": 700,
                "spec.boundObjectRef": {**POD, "uid": "$uid"},
                "status.expirationTimestamp": Text(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"),
            },
            {"token": "status.token"},
        ),
        Claims({**SUBJECT, "aud": ["job"], "kubernetes/io": OF_POD, "kubernetes/io.node": ABSENT}, 700),
    ),
    row(
        "a token without wishes is for the API server, for an hour",
        ACCOUNT,
        Call(
            "POST",
            TOKENS,
            {},
            201,
            {"spec.audiences": [API], "spec.expirationSeconds": 3600, "spec.boundObjectRef": None},
            {"token": "status.token"},
        ),
        Claims({**SUBJECT, "aud": [API], "kubernetes/io": OF_ACCOUNT, "kubernetes/io.pod": ABSENT}),
    ),
    row(
        "a token of a pod on a node names the node, as long as it exists with its UID",
        ACCOUNT,
        Call("POST", "/api/v1/nodes", {"metadata": {"name": "$ns"}}, 201, keeps={"node": "metadata.uid"}),
        Call("POST", PODS, pod(serviceAccountName="sa", nodeName="$ns"), 201),
        request(boundObjectRef=POD),
        Claims({"aud": [API], "kubernetes/io.node": {"name": "$ns", "uid": "$node"}}),
        review(None, {f"{EXTRA}node-name": ["$ns"], f"{EXTRA}node-uid": ["$node"], f"{EXTRA}pod-name": ["p"]}),
        Call("DELETE", "/api/v1/nodes/$ns"),
        request(boundObjectRef=POD),
        Claims({"kubernetes/io.node.name": "$ns", "kubernetes/io.node.uid": ABSENT}),
        review(None, {"status.authenticated": True, f"{EXTRA}node-name": ["$ns"], f"{EXTRA}node-uid": ABSENT}),
    ),
    row(
        "the default lifetime of a pod's token for the API server is extended",
        ACCOUNT,
        IN_POD,
        request(boundObjectRef=POD, expirationSeconds=3607),
        Claims({"kubernetes/io.warnafter": PRESENT}, 365 * 24 * 3600),
        request(boundObjectRef=POD, expirationSeconds=3607, audiences=["job"]),
        Claims({"kubernetes/io.warnafter": ABSENT}, 3607),
        request(expirationSeconds=3607),
        Claims({"kubernetes/io.warnafter": ABSENT}, 3607),
        request(boundObjectRef=POD, expirationSeconds=3608),
        Claims({"kubernetes/io.warnafter": ABSENT}, 3608),
    ),
    row(
        "lifetimes of tokens have limits",
        ACCOUNT,
        reject(422, "spec.expirationSeconds: Invalid value: 599: .*less than 10 minutes", {"expirationSeconds": 599}),
        reject(422, "spec.expirationSeconds: Invalid value: 0: .*less than 10 minutes", {"expirationSeconds": 0}),
        reject(422, "larger than 2\\^32 seconds", {"expirationSeconds": 2**32 + 1}),
        request(expirationSeconds=2**32),
        Claims({}, 2**32),
        request(expirationSeconds=None),
        Claims({}, 3600),
    ),
    row(
        "a token request that is no such thing",
        ACCOUNT,
        reject(400, "cannot be handled as a TokenRequest", []),
        reject(400, "cannot be handled as a TokenRequest", {"audiences": "job"}),
        reject(400, "cannot be handled as a TokenRequest", {"audiences": [1]}),
        reject(400, "cannot be handled as a TokenRequest", {"expirationSeconds": "3600"}),
        reject(400, "cannot be handled as a TokenRequest", {"expirationSeconds": 3600.5}),
        reject(400, "cannot be handled as a TokenRequest", {"boundObjectRef": "p"}),
        reject(
            400,
            r"Pod in version \"v1\" cannot be handled as a TokenRequest: .*unknown conversion",
            {},
            kind="Pod",
            apiVersion="v1",
        ),
        Call("POST", TOKENS, "", 400, {"message": Text("unexpected end of JSON input")}),
        Call("GET", TOKENS, status=405),
        Call("PUT", TOKENS, {}, 405),
    ),
    row(
        "a token request of another account",
        ACCOUNT,
        reject(404, 'serviceaccounts "none" not found', {}, f"{ACCOUNTS}/none/token"),
        reject(
            422,
            "metadata.name: .*must match the service account name if specified",
            {},
            metadata={"name": "other"},
        ),
        reject(
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
            {},
            metadata={"namespace": "other"},
        ),
        reject(
            409,
            r"on TokenRequest.authentication.k8s.io \"sa\": the UID in the token request \(x\) does not match the UID "
            r"of the service account \($account\)",
            {},
            metadata={"uid": "x"},
        ),
    ),
    row(
        "a token is bound to an object that exists",
        ACCOUNT,
        IN_POD,
        Call("POST", ACCOUNTS, {"metadata": {"name": "other"}}, 201),
        reject(404, 'pods "none" not found', {"boundObjectRef": {**POD, "name": "none"}}),
        reject(
            409,
            r'on Pod "p": the UID in the bound object reference \(x\) does not match the UID in record',
            {"boundObjectRef": {**POD, "uid": "x"}},
        ),
        reject(
            400,
            'cannot bind token for serviceaccount "other" to pod running with different serviceaccount name.',
            {"boundObjectRef": POD},
            f"{ACCOUNTS}/other/token",
        ),
        reject(400, "^Name parameter required.$", {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1"}}),
        reject(400, "object of type /, Kind=$", {"boundObjectRef": {}}),
        reject(400, "object of type /v1, Kind=ConfigMap$", {"boundObjectRef": {**POD, "kind": "ConfigMap"}}),
        reject(400, "object of type apps/v1, Kind=Pod$", {"boundObjectRef": {**POD, "apiVersion": "apps/v1"}}),
        reject(404, 'secrets "p" not found', {"boundObjectRef": {**POD, "kind": "Secret"}}),
        reject(404, 'nodes "none" not found', {"boundObjectRef": {**POD, "kind": "Node", "name": "none"}}),
    ),
]

NO_TOKEN: tuple[Any, ...] = ({}, {"spec": {}}, {"spec": {"token": "", "audiences": ["job"]}})
NO_REVIEW: tuple[Any, ...] = ([], {"token": 1}, {"token": "x", "audiences": "x"}, {"token": "x", "audiences": [{}]})
ACCEPTED = [
    row(
        "a review of a pod's token names the pod",
        *BOUND,
        Call(
            "POST",
            REVIEWS,
            {"spec": {"token": "$token", "audiences": ["job"]}},
            201,
            {
                "kind": "TokenReview",
                "apiVersion": "authentication.k8s.io/v1",
                "spec": {"token": "$token", "audiences": ["job"]},
                "status.authenticated": True,
                "status.error": ABSENT,
                "status.audiences": ["job"],
                "status.user.username": "system:serviceaccount:$ns:sa",
                "status.user.uid": "$account",
                "status.user.groups": [
                    "system:serviceaccounts",
                    "system:serviceaccounts:$ns",
                    "system:authenticated",
                ],
                f"{EXTRA}pod-name": ["p"],
                f"{EXTRA}pod-uid": ["$uid"],
                f"{EXTRA}credential-id.0": JTI,
                f"{EXTRA}node-name": ABSENT,
            },
        ),
    ),
    row(
        "a review of a token that no pod has",
        ACCOUNT,
        request(),
        accepted(None),
        review(None, {f"{EXTRA}pod-name": ABSENT, f"{EXTRA}pod-uid": ABSENT, f"{EXTRA}credential-id.0": JTI}),
    ),
    row(
        "a review accepts the audiences that token and review have",
        ACCOUNT,
        request(audiences=["b", "a", "c"]),
        accepted(["c", "x", "b"], shown=["c", "b"]),
        refused('token audiences ["b" "a" "c"] is invalid for the target audiences ["x" "y"]', ["x", "y"]),
        refused('token audiences ["b" "a" "c"] is invalid for the target audiences ["a\\"b"]', ['a"b']),
        review(
            None,
            {
                "status.authenticated": ABSENT,
                "status.error": f'[invalid bearer token, token audiences ["b" "a" "c"] is invalid for the target '
                f'audiences ["{API}"]]',
            },
        ),
        review([], {"status.authenticated": ABSENT}),
        request(),
        refused(f'token audiences ["{API}"] is invalid for the target audiences ["job"]'),
    ),
    row(
        "a token is accepted in requests if it is for the API server",
        *BOUND,
        Bearer("GET", PODS, True, {"reason": "Unauthorized"}),
        request(boundObjectRef=POD),
        Bearer("GET", PODS, False),
        Bearer(
            "POST",
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            False,
            {
                "status.userInfo.username": "system:serviceaccount:$ns:sa",
                "status.userInfo.uid": "$account",
                "status.userInfo.extra.authentication/kubernetes/io~pod-name": ["p"],
            },
        ),
        Signed(seconds={"exp": -100}),
        Bearer("GET", PODS, True),
    ),
    row(
        "clocks may differ by less than a minute",
        *BOUND,
        Signed(seconds={"exp": -20}),
        accepted(["job"]),
        Signed(seconds={"exp": 600, "nbf": 20, "iat": 20}),
        accepted(["job"]),
    ),
    row("one audience as a string", *BOUND, Signed({"aud": "job"}), accepted(["job"])),
    row("a token without audiences is for the API server", *BOUND, Signed({"aud": None}), accepted(None)),
    row(
        "a review is of the first word of a token, and of nobody if that is empty",
        *BOUND,
        review(["job"], {"status.authenticated": True, f"{EXTRA}pod-name": ["p"]}, "$token and more"),
        *(
            review(
                ["b", "a"],
                {
                    "status.authenticated": True,
                    "status.user": {"username": "system:anonymous", "groups": ["system:unauthenticated"]},
                    "status.audiences": ["b", "a"],
                },
                token,
            )
            for token in (" $token", " x", "  ")
        ),
    ),
    row(
        "a review without a token",
        *(
            Call("POST", REVIEWS, body, 400, {"message": "token is required for TokenReview in authentication"})
            for body in NO_TOKEN
        ),
        *(
            Call("POST", REVIEWS, {"spec": spec}, 400, {"message": Text("cannot be handled as a TokenReview")})
            for spec in NO_REVIEW
        ),
    ),
]

FORGED: dict[str, tuple[str, Callable[[str], str]]] = {
    "a word": ("", lambda token: "word"),
    "three words": ("", lambda token: "a.b.c"),
    "dots": ("", lambda token: ".."),
    "a signature cut off": ("", lambda token: token.rpartition(".")[0]),
    "a part too many": ("", lambda token: f"{token}.x"),
    "a signature that is not base64": ("", lambda token: f"{token.rpartition('.')[0]}.*"),
    "a header that is not JSON": ("", lambda token: f"x.{token.partition('.')[2]}"),
    "claims that are not JSON": ("", lambda token: ".".join((token.split(".")[0], "x", token.split(".")[2]))),
    "claims that are a list": ("", lambda token: ".".join((token.split(".")[0], _encoded([]), token.split(".")[2]))),
    "claims without end": (
        "",
        lambda token: ".".join((token.split(".")[0], _encoded("[" * 9999).rstrip("="), token.split(".")[2])),
    ),
    "another issuer": ("", lambda token: _resigned(token, iss="https://example.com")),
    "no issuer": ("", lambda token: _resigned(token, iss="")),
    "an empty signature": ("go-jose/go-jose: error in cryptographic primitive", lambda token: token[:-8] + "AAAAAAAA"),
    "claims of another account": (
        "go-jose/go-jose: error in cryptographic primitive",
        lambda token: _resigned(token, sub="system:serviceaccount:kube-system:default"),
    ),
    "a longer life": (
        "go-jose/go-jose: error in cryptographic primitive",
        lambda token: _resigned(token, exp=2**40),
    ),
    "the algorithm none": (
        "go-jose/go-jose: error in cryptographic primitive",
        lambda token: f"{_encoded({'alg': 'none'})}.{token.split('.')[1]}.",
    ),
}

_OTHER = "00000000-0000-0000-0000-000000000000"
INVALID: dict[str, tuple[str, Signed]] = {
    "expired": ("service account token has expired", Signed(seconds={"exp": -100})),
    "not valid yet": ("service account token is not valid yet", Signed(seconds={"nbf": 1000})),
    "issued in the future": ("service account token is issued in the future", Signed(seconds={"iat": 1000})),
    "of an account that is gone": (
        'serviceaccounts "none" not found',
        Signed({"kubernetes.io": {**OF_POD, "serviceaccount": {"name": "none", "uid": "$account"}}}),
    ),
    "of an account with another UID": (
        f"service account UID ($account) does not match claim ({_OTHER})",
        Signed({"kubernetes.io": {**OF_POD, "serviceaccount": {"name": "sa", "uid": _OTHER}}}),
    ),
    "of no account": ("resource name may not be empty", Signed({"kubernetes.io": None})),
    "of a pod that is gone": (
        UNAVAILABLE,
        Signed({"kubernetes.io": {**OF_ACCOUNT, "pod": {"name": "none", "uid": "$uid"}}}),
    ),
    "of a pod with another UID": (
        f"pod UID ($uid) does not match service account pod ref claim ({_OTHER})",
        Signed({"kubernetes.io": {**OF_ACCOUNT, "pod": {"name": "p", "uid": _OTHER}}}),
    ),
    "of a pod in another namespace": (
        'serviceaccounts "sa" not found',
        Signed({"kubernetes.io": {**OF_POD, "namespace": "kube-system"}}),
    ),
}

REFUSED = [
    *(
        row(f"{name} is no token", *BOUND, Altered(change), refused(error), Bearer("GET", PODS, True))
        for name, (error, change) in FORGED.items()
    ),
    *(row(f"a token {name}", *BOUND, step, refused(error)) for name, (error, step) in INVALID.items()),
]


def _ended(reference: Mapping[str, Any], created: Call, deleted: str) -> tuple[Step, ...]:
    """A token of an object is valid until the object is deleted."""
    return (
        created,
        request(audiences=["job"], boundObjectRef=reference),
        accepted(["job"]),
        Call("DELETE", deleted, {"gracePeriodSeconds": 0}),
        Until(refused(UNAVAILABLE)),
    )


ENDED = [
    row("a token ends with its pod", ACCOUNT, *_ended(POD, IN_POD, f"{PODS}/p")),
    row(
        "a token ends with its pod even if another pod has the name",
        ACCOUNT,
        *_ended(POD, IN_POD, f"{PODS}/p"),
        Call("POST", PODS, pod(serviceAccountName="sa"), 201, keeps={"next": "metadata.uid"}),
        refused("pod UID ($next) does not match service account pod ref claim ($uid)"),
    ),
    row(
        "a token ends with its Secret",
        ACCOUNT,
        *_ended(
            {**POD, "kind": "Secret"},
            Call("POST", f"{CORE}/secrets", {"metadata": {"name": "p"}}, 201),
            f"{CORE}/secrets/p",
        ),
    ),
    row(
        "a token ends with its node",
        ACCOUNT,
        *_ended(
            {**POD, "kind": "Node", "name": "$ns"},
            Call("POST", "/api/v1/nodes", {"metadata": {"name": "$ns"}}, 201),
            "/api/v1/nodes/$ns",
        ),
    ),
    row(
        "a token ends with its account",
        *BOUND,
        accepted(["job"]),
        Call("DELETE", f"{ACCOUNTS}/sa"),
        Until(refused('serviceaccounts "sa" not found')),
    ),
]


def projected(*sources: Any, **volume: Any) -> dict[str, Any]:
    return pod("v", serviceAccountName="sa", volumes=[{"name": "t", "projected": {"sources": list(sources), **volume}}])


def token_source(**fields: Any) -> dict[str, Any]:
    return {"serviceAccountToken": fields}


def shown(*items: Any) -> dict[str, Any]:
    return {"downwardAPI": {"items": list(items)}}


def volume_error(body: dict[str, Any], field_path: str, message: str) -> Call:
    cause = f"spec.volumes[0].projected{field_path}"
    return Call("POST", PODS, body, 422, {"details.causes.#": 1, **_cause(cause, message)})


def _cause(field_path: str, message: str) -> dict[str, Any]:
    return {"details.causes.0.field": field_path, "details.causes.0.message": Text(message)}


NAME = {"path": "a", "fieldRef": {"fieldPath": "metadata.name"}}
VOLUMES: list[Row] = [
    row(
        "defaults of projected volumes",
        Call(
            "POST",
            PODS,
            projected(token_source(path="t", audience="job"), shown(NAME)),
            201,
            {
                "spec.volumes.0.projected.defaultMode": 0o644,
                "spec.volumes.0.projected.sources.0.serviceAccountToken.expirationSeconds": 3600,
                "spec.volumes.0.projected.sources.1.downwardAPI.items.0.fieldRef.apiVersion": "v1",
            },
        ),
    ),
    row(
        "lifetimes of projected tokens",
        volume_error(
            projected(token_source(path="t", expirationSeconds=599)),
            ".sources[0].serviceAccountToken.expirationSeconds",
            "Invalid value: 599: may not specify a duration less than 10 minutes",
        ),
        volume_error(
            projected(shown(NAME), token_source(path="t", expirationSeconds=2**32 + 1)),
            ".sources[1].serviceAccountToken.expirationSeconds",
            "may not specify a duration larger than 2\\^32 seconds",
        ),
    ),
    row(
        "paths in projected volumes",
        volume_error(projected(token_source(audience="x")), ".path", "Required value"),
        volume_error(projected(token_source(path="/t")), ".path", '"/t": must be a relative path'),
        volume_error(projected(token_source(path="a/../t")), ".path", "must not contain '..'"),
        volume_error(projected(token_source(path="..t")), ".path", "must not start with '..'"),
        volume_error(
            projected({"configMap": {"name": "x", "items": [{"key": "k", "path": "a"}]}}, shown(NAME)),
            "",
            'Invalid value: "a": conflicting duplicate paths',
        ),
        volume_error(
            projected(shown(NAME), {"secret": {"name": "x", "items": [{"key": "k", "path": "a"}]}}),
            "",
            'Invalid value: "x": conflicting duplicate paths',
        ),
        Call("POST", PODS, projected(token_source(path="t"), token_source(path="t")), 201),
    ),
    row(
        "sources of projected volumes",
        volume_error(
            projected({**token_source(path="t"), "configMap": {"name": "x"}}),
            ".sources[0]",
            "Forbidden: may not specify more than 1 volume type per source",
        ),
        volume_error(projected({"configMap": {}}), ".sources[0].configMap.name", "Required value"),
        volume_error(projected({"secret": {"optional": True}}), ".sources[0].secret.name", "Required value"),
        volume_error(
            projected(token_source(path="t"), defaultMode=0o1000),
            ".defaultMode",
            "Invalid value: 512: must be a number between 0 and 0777",
        ),
        Call("POST", PODS, projected({}), 201),
        Call(
            "POST",
            PODS,
            pod(
                volumes=[{"name": "a b", "secret": {}}],
                containers=[{"name": "c", "image": "i", "volumeMounts": [{"name": "a b", "mountPath": "/x"}]}],
            ),
            422,
            {
                "details.causes.#": 3,
                "details.causes.0.field": "spec.volumes[0].secret.secretName",
                "details.causes.1.field": "spec.volumes[0].name",
                "details.causes.2.field": "spec.containers[0].volumeMounts[0].name",
            },
        ),
    ),
    row(
        "fields in projected volumes",
        *(
            Call("POST", PODS, {**projected(shown(item)), "metadata": {"generateName": "v"}}, 201)
            for item in (
                {"path": "a", "fieldRef": {"fieldPath": path}}
                for path in (
                    "metadata.annotations['example.com/x']",
                    "metadata.labels['x']",
                    "metadata.labels",
                    "metadata.annotations",
                    "metadata.name",
                    "metadata.namespace",
                    "metadata.uid",
                )
            )
        ),
        volume_error(
            projected(shown({"path": "a", "fieldRef": {"fieldPath": "status.podIP"}})),
            ".sources[0].downwardAPI.fieldRef.fieldPath",
            'Unsupported value: "status.podIP": supported values: "metadata.annotations", "metadata.labels", ',
        ),
        volume_error(
            projected(shown({"path": "a", "fieldRef": {"fieldPath": "metadata.none"}})),
            ".sources[0].downwardAPI.fieldRef.fieldPath",
            "error converting fieldPath: field label not supported: metadata.none",
        ),
        volume_error(
            projected(shown({"fieldRef": {"fieldPath": "metadata.name"}})),
            ".sources[0].downwardAPI.path",
            "Required value",
        ),
        volume_error(
            projected(shown({"path": "a"})),
            ".sources[0].downwardAPI",
            "Required value: one of fieldRef and resourceFieldRef is required",
        ),
        volume_error(
            projected(shown({"path": "a", "fieldRef": {"fieldPath": "metadata.annotations['a b']"}})),
            ".sources[0].downwardAPI.fieldRef",
            'Invalid value: "a b": name part must consist of alphanumeric characters',
        ),
        volume_error(
            projected(shown({"path": "a", "fieldRef": {"fieldPath": "metadata.uid['a']"}})),
            ".sources[0].downwardAPI.fieldRef.fieldPath",
            "field label does not support subscript: metadata.uid",
        ),
        volume_error(
            projected(shown({"path": "a", "resourceFieldRef": {"resource": "limits.cpu"}})),
            ".sources[0].downwardAPI.resourceFieldRef.containerName",
            "Required value",
        ),
    ),
]

ITEMS = {"items": [{"key": "k", "path": "../k"}]}
VOLUMES += [
    row(
        f"files of a volume {kind}",
        *(
            Call("POST", PODS, pod("v", volumes=[{"name": "t", kind: source}]), 422, _cause(path, message))
            for source, path, message in (
                ({**own, "defaultMode": -1}, f"spec.volumes[0].{kind}.defaultMode", "between 0 and 0777"),
                ({}, f"spec.volumes[0].{kind}.{named}", "Required value")
                if named
                else ({"items": [{"path": "a"}]}, f"spec.volumes[0].{kind}", "Required value: one of fieldRef"),
                ({**own, **items}, f"spec.volumes[0].{kind}{at}.path", "must not contain '..'"),
            )
        ),
    )
    for kind, named, own, items, at in (
        ("configMap", "name", {"name": "x"}, ITEMS, ".items[0]"),
        ("secret", "secretName", {"secretName": "x"}, ITEMS, ".items[0]"),
        ("downwardAPI", "", {}, {"items": [{**NAME, "path": "../k"}]}, ""),
    )
]

ROWS: list[Row] = [*REQUESTS, *ACCEPTED, *REFUSED, *ENDED, *VOLUMES]

BACKGROUND: list[Row] = [
    row(
        "a pod without an account has tokens of the account default",
        Until(Call("GET", f"{ACCOUNTS}/default")),
        Until(Call("POST", PODS, pod(), 201)),
        Call(
            "POST",
            f"{ACCOUNTS}/default/token",
            {"spec": {"audiences": ["job"], "boundObjectRef": POD}},
            201,
            keeps={"token": "status.token"},
        ),
        review(["job"], {"status.user.username": "system:serviceaccount:$ns:default", f"{EXTRA}pod-name": ["p"]}),
    ),
]
