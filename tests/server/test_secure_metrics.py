"""Metrics over TLS, with access decided by TokenReview and SubjectAccessReview."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from e2e.cluster.api import Api
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from e2e.monitoring.prometheus import Prometheus
from tests.audit import granted, requested
from tests.kustomize import combine
from tests.needs import need_monitoring
from tests.patience import PATIENCE
from tests.server.pod import (
    AS_IN_A_POD,
    NAME,
    UNSHARE,
    PodStandIn,
    deployment_of,
    flags_of,
    write_service_account,
)
from tests.server.process import Operator
from tests.server.test_installation import apply
from tests.server.world import Json, World
from trainop.runtime.webhook.certificates import Pair, issue, make_authority

MakeOperator = Callable[..., Operator]
WEBHOOKS = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def token_of(api: Api, namespace: str, name: str) -> str:
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    assert api("POST", accounts, {"metadata": {"name": name}}).status == 201
    answer = api("POST", f"{accounts}/{name}/token", {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"})
    assert answer.status == 201, answer
    return str(answer.body["status"]["token"])


def let_read_metrics(api: Api, namespace: str, name: str) -> None:
    rule = {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
    role = {"metadata": {"name": f"{namespace}-metrics"}, "rules": [rule]}
    assert api("POST", f"{RBAC}/clusterroles", role).status == 201
    binding = {
        "metadata": {"name": f"{namespace}-metrics"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"{namespace}-metrics"},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": name}],
    }
    assert api("POST", f"{RBAC}/clusterrolebindings", binding).status == 201


def scrape(operator: Operator, trust: ssl.SSLContext, token: str = "") -> tuple[int, str]:
    url = operator.metrics_url.replace("http://127.0.0.1", "https://localhost")
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})  # noqa: S310  https, to a port that we chose
    try:
        with urllib.request.urlopen(request, timeout=30, context=trust) as answer:  # noqa: S310  the same
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_readiness_fails_while_the_server_answers_401(
    control_plane: ControlPlane, quiet_world: World, make_operator: MakeOperator, tmp_path: Path
):
    token, config = tmp_path / "token", json.loads(control_plane.kubeconfig.read_text())
    token.write_text("wrong")
    config["users"][0]["user"] = {"tokenFile": str(token)}
    (tmp_path / "config").write_text(json.dumps(config))
    operator = make_operator(tmp_path / "config", f"--namespace={quiet_world.namespace}")
    operator.start(wait=False)
    check = "/readyz/credentials"
    assert wait_until(lambda: operator.probe(check)[0] == 500, PATIENCE), operator.text()
    token.write_text(token_of(control_plane.api, quiet_world.namespace, "operator"))  # it has no rights: 403
    assert wait_until(lambda: operator.probe(check)[0] == 200, PATIENCE), operator.text()


def test_metrics_require_the_right_to_get_them(
    control_plane: ControlPlane, quiet_world: World, make_operator: MakeOperator
):
    api, namespace = control_plane.api, quiet_world.namespace
    operator = make_operator(control_plane.kubeconfig, f"--namespace={namespace}", "--metrics-secure")
    operator.start()
    anything = ssl._create_unverified_context()  # noqa: S323  it is self-signed
    scraper, stranger = token_of(api, namespace, "scraper"), token_of(api, namespace, "stranger")
    let_read_metrics(api, namespace, "scraper")
    assert scrape(operator, anything)[0] == 401
    assert scrape(operator, anything, "nobody")[0] == 401
    refused = 403, f"Authorization denied for user system:serviceaccount:{namespace}:stranger\n"
    assert scrape(operator, anything, stranger) == refused
    status, text = scrape(operator, anything, scraper)
    assert status == 200
    assert "controller_runtime_reconcile_total" in text


def test_the_shipped_component_answers_scrapes_with_a_token_alone(
    control_plane: ControlPlane,
    quiet_world: World,
    make_operator: MakeOperator,
    alone: None,
    kubectl: str,
    tmp_path: Path,
):
    """With the account and rights of the component, and with the certificate that the operator makes for itself."""
    api, home = control_plane.api, f"{quiet_world.namespace}-home"
    assert api("POST", "/api/v1/namespaces", {"metadata": {"name": home}}).status == 201
    documents = combine(kubectl, tmp_path / "overlay", "standalone", ["secure-metrics"], namespace=home)
    for document in documents:
        if document["kind"] not in {"Namespace", "Deployment", "Service"} and "webhooks" not in document:
            apply(api, document)
    pod = PodStandIn(control_plane, tmp_path / "account", make_operator)
    operator = pod.start(home, *flags_of(deployment_of(documents)), f"--namespace={home}")
    anything = ssl._create_unverified_context()  # noqa: S323  as the shipped ServiceMonitor
    scraper, stranger = token_of(api, home, "scraper"), token_of(api, home, "stranger")
    let_read_metrics(api, home, "scraper")
    assert scrape(operator, anything)[0] == 401
    assert scrape(operator, anything, stranger)[0] == 403
    assert wait_until(lambda: scrape(operator, anything, scraper)[0] == 200, PATIENCE), operator.text()
    own = [each for each in documents if each["metadata"]["name"].endswith("-secure-metrics")]
    assert len(granted(own)) == 2
    assert granted(own) <= requested(control_plane, home, NAME)
    assert not granted(own) & requested(control_plane, home, NAME, "forbid")


def secure_endpoint(documents: list[Json]) -> Json:
    """The endpoint of the ServiceMonitor that fits the Service: an operator of Prometheus takes those whose port has
    the name of one of the Service's."""
    (service,) = (each for each in documents if (each["kind"], each["metadata"]["name"]) == ("Service", NAME))
    (monitor,) = (each for each in documents if each["kind"] == "ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    ports = {each["name"] for each in service["spec"]["ports"]}
    (endpoint,) = (each for each in monitor["spec"]["endpoints"] if each["port"] in ports)
    return dict(endpoint)


def scrape_settings(endpoint: Json) -> Json:
    """The settings that prometheus-operator makes of an endpoint (its `pkg/prometheus/promcfg.go`), but the interval.
    Raises `KeyError` for a field that this does not know."""
    names = {"caFile": "ca_file", "serverName": "server_name", "insecureSkipVerify": "insecure_skip_verify"}
    tls = {names[name]: value for name, value in endpoint.pop("tlsConfig").items()}
    known = {
        "path": lambda path: {"metrics_path": path},
        "scheme": lambda scheme: {"scheme": scheme},
        "bearerTokenFile": lambda path: {"authorization": {"credentials_file": path}},
        "port": lambda _: {},
        "interval": lambda _: {},
    }
    return {"tls_config": tls} | {k: v for name, value in endpoint.items() for k, v in known[name](value).items()}


VERIFIED = "verified"


@pytest.mark.parametrize("certificate", ["of the operator", VERIFIED])
def test_prometheus_scrapes_the_shipped_component(
    certificate: str,
    control_plane: ControlPlane,
    quiet_world: World,
    make_operator: MakeOperator,
    alone: None,
    kubectl: str,
    tmp_path: Path,
):
    """With the settings of the shipped ServiceMonitor and the token of a service account, mounted as in a pod; and with
    the mounted certificate and the `tlsConfig` that docs/monitoring.md describes."""
    need_monitoring("prometheus")
    api, home = control_plane.api, f"{quiet_world.namespace}-home"
    assert api("POST", "/api/v1/namespaces", {"metadata": {"name": home}}).status == 201
    chosen = ["secure-metrics", "service-monitor"]
    documents = combine(kubectl, tmp_path / "overlay", "standalone", chosen, namespace=home)
    for document in documents:
        if document["kind"] not in {"Namespace", "Deployment", "Service", "ServiceMonitor"} | {*WEBHOOKS}:
            apply(api, document)
    endpoint, flags = secure_endpoint(documents), [f"--namespace={home}"]
    if certificate == VERIFIED:
        now, name = datetime.now(UTC), f"training-operator.{home}.svc"
        authority = make_authority("test", "test", now)
        write(tmp_path / "certs", issue(authority, [name], now))
        flags.append(f"--metrics-cert-dir={tmp_path / 'certs'}")
        (tmp_path / "ca.crt").write_bytes(authority.certificate)
        trust = {"caFile": str(tmp_path / "ca.crt"), "serverName": name, "insecureSkipVerify": False}
        endpoint["tlsConfig"] = trust
    pod = PodStandIn(control_plane, tmp_path / "account", make_operator)
    operator = pod.start(home, *flags_of(deployment_of(documents)), *flags)
    token_of(api, home, "prometheus")
    own = tmp_path / "prometheus-account"
    write_service_account(api, home, own, control_plane.data / "pki" / "ca.crt", "prometheus")
    target = operator.metrics_url.removeprefix("http://").removesuffix("/metrics")
    inside = [*UNSHARE, "sh", "-c", AS_IN_A_POD, "sh", str(own)]
    prometheus = Prometheus(tmp_path, NAME, target, scrape=scrape_settings(endpoint), inside=inside)
    prometheus.start()
    try:
        refused = "server returned HTTP status 403 Forbidden"
        assert wait_until(lambda: prometheus.failure() == refused, PATIENCE), prometheus.log.read_text()
        let_read_metrics(api, home, "prometheus")
        up = f'up{{job="{NAME}"}} == 1'
        assert wait_until(lambda: bool(prometheus.query(up)), PATIENCE), prometheus.failure()
        assert prometheus.query("controller_runtime_active_workers"), "the series of the operator"
    finally:
        prometheus.end()


def write(folder: Path, pair: Pair) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)


def test_a_mounted_certificate_is_served(
    control_plane: ControlPlane, quiet_world: World, make_operator: MakeOperator, tmp_path: Path
):
    now = datetime.now(UTC)
    authority = make_authority("test", "test", now)
    write(tmp_path / "certs", issue(authority, ["localhost"], now))
    flags = (f"--namespace={quiet_world.namespace}", "--metrics-secure", f"--metrics-cert-dir={tmp_path / 'certs'}")
    operator = make_operator(control_plane.kubeconfig, *flags)
    operator.start()
    operator.wait_text("serving certificate loaded")
    trust = ssl.create_default_context(cadata=authority.certificate.decode())
    assert scrape(operator, trust)[0] == 401
    other = make_authority("another", "test", now)
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        scrape(operator, ssl.create_default_context(cadata=other.certificate.decode()))
