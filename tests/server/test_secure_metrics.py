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
from tests.patience import PATIENCE
from tests.server.process import Operator
from tests.server.world import World
from trainop.runtime.webhook.certificates import Pair, issue, make_authority

MakeOperator = Callable[..., Operator]
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
