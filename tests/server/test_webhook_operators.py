"""Certificates and outages of the admission webhooks: operator processes that are called by a real API server."""

from __future__ import annotations

import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator

import pytest
from cryptography import x509

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from tests.patience import PATIENCE
from tests.runtime.authority import cert_controller_pairs, secret_data
from tests.server.process import Operator
from tests.server.webhooks import SECRET, SECRETS, Webhooks, served_certificate, try_job
from tests.server.world import MERGE, World, replicas

MakeOperator = Callable[..., Operator]


def start(make_operator: MakeOperator, control_plane: ControlPlane, hooks: Webhooks, *, wait: bool = True) -> Operator:
    operator = make_operator(control_plane.kubeconfig, environment=hooks.environment)
    operator.start(wait=wait)
    return operator


@pytest.fixture
def hooks(quiet_world: World, alone: None) -> Iterator[Webhooks]:
    """A namespace with the operator's Service, without an operator and without a configuration."""
    del alone
    installed = Webhooks(quiet_world)
    yield installed
    installed.remove()


@pytest.mark.case("job-engine-40", "abcd")
def test_ready_once_the_certificate_is_served_and_its_authority_injected(
    control_plane: ControlPlane, hooks: Webhooks, make_operator: MakeOperator
):
    # of its own namespace alone, because the memory for objects of other tests is not to be measured
    flag = f"--namespace={hooks.world.namespace}"
    operator = make_operator(control_plane.kubeconfig, flag, environment=hooks.environment)
    hooks.install(operator.webhook_port, "Fail")
    control_plane.signal("kube-apiserver", signal.SIGSTOP)
    try:
        operator.start(wait=False)
        assert wait_until(lambda: operator.probe("/healthz")[0] == 200, PATIENCE), operator.text()
        assert operator.probe("/readyz")[0] == 500
        assert operator.probe("/readyz/webhooks") == (500, "internal server error: certificates are not ready\n")
    finally:
        control_plane.signal("kube-apiserver", signal.SIGCONT)
    states = set()

    def is_ready() -> bool:
        states.add(operator.probe("/healthz")[0])
        return operator.probe("/readyz")[0] == 200

    assert wait_until(is_ready, PATIENCE), operator.text()
    assert states == {200}
    secret = hooks.secret()
    assert set(secret) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
    assert set(hooks.bundles()) == {secret["ca.crt"]}
    certificate = x509.load_pem_x509_certificate(secret["tls.crt"])
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [f"training-operator.{hooks.world.namespace}.svc"]
    hooks.wait_called()
    path = "/validate-kubeflow-org-v1-pytorchjob"
    assert (operator.metric(f'controller_runtime_webhook_requests_total{{code="200",webhook="{path}"}}') or 0) >= 1
    assert operator.metric("certwatcher_read_certificate_total") == 1
    assert operator.resident_mib() < 70, "with webhooks, at rest"


def test_jobs_while_the_operator_is_down(control_plane: ControlPlane, hooks: Webhooks, make_operator: MakeOperator):
    """By default a job is accepted, and the operator refuses it later; with the policy Fail nothing is accepted."""
    world = hooks.world
    operator = start(make_operator, control_plane, hooks)
    hooks.install(operator.webhook_port)
    hooks.wait_injected()
    hooks.wait_called()
    operator.end()
    world.create_job("bad", {"Master": replicas(2)})
    hooks.remove()
    hooks.install(operator.webhook_port, "Fail")

    def refused() -> bool:
        answer = try_job(world, "j")
        clear = 'failed calling webhook "validator.pytorchjob.training-operator.kubeflow.org"' in answer.message
        return answer.status == 500 and clear

    world.wait(refused, "the refusal of a job")
    operator.start()
    failed = world.wait_condition("Failed", "bad")
    assert failed["reason"] == "PyTorchJobFailedValidation"
    assert failed["message"].endswith("spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1")
    assert world.pods() == {}
    hooks.wait_called()
    assert try_job(world, "j").status == 201


def test_an_expired_certificate_is_replaced_at_the_start(
    control_plane: ControlPlane, hooks: Webhooks, make_operator: MakeOperator
):
    """The CA, which cert-controller has made, stays, and so do fields that are not the operator's."""
    hooks.put_secret({**secret_data(*cert_controller_pairs(server_left=-1, name=hooks.host)), "other": "eA=="})
    before = hooks.secret()
    operator = make_operator(control_plane.kubeconfig, environment=hooks.environment)
    hooks.install(operator.webhook_port, "Fail")
    operator.start()
    hooks.wait_called()
    after = hooks.secret()
    assert {name for name in after if after[name] != before[name]} == {"tls.crt", "tls.key"}
    assert set(hooks.bundles()) == {before["ca.crt"]}


def test_two_replicas_that_start_together_serve_the_same(
    control_plane: ControlPlane, hooks: Webhooks, make_operator: MakeOperator
):
    hooks.put_secret({})
    flags = ["--leader-elect", f"--leader-election-namespace={hooks.world.namespace}"]
    replicas = [make_operator(control_plane.kubeconfig, *flags, environment=hooks.environment) for _ in range(2)]
    hooks.install(replicas[0].webhook_port, "Fail")
    for replica in replicas:
        replica.start(wait=False)

    def are_ready() -> bool:
        return all(replica.probe("/readyz")[0] == 200 for replica in replicas)

    assert wait_until(are_ready, PATIENCE), "".join(replica.text() for replica in replicas)
    authority = hooks.wait_injected()
    expected = ssl.PEM_cert_to_DER_cert(hooks.secret()["tls.crt"].decode())
    assert [served_certificate(replica, authority, hooks.host) for replica in replicas] == [expected] * 2
    hooks.wait_called()


@pytest.mark.slow
def test_no_call_fails_while_the_authority_changes(
    control_plane: ControlPlane, hooks: Webhooks, make_operator: MakeOperator
):
    """Certificates of cert-controller are taken over unchanged. Then the same CA, signed anew for a shorter time, is
    due for renewal."""
    hooks.put_secret(secret_data(*cert_controller_pairs(name=hooks.host)))
    before = hooks.secret()
    operator = make_operator(control_plane.kubeconfig, environment=hooks.environment)
    hooks.install(operator.webhook_port, "Fail")
    operator.start()
    hooks.wait_called()
    assert hooks.secret() == before
    due = cert_controller_pairs(authority_left=60, name=hooks.host)
    hooks.world.ask("PATCH", f"{SECRETS}/{SECRET}", {"data": secret_data(*due)}, MERGE)
    calls = after = 0
    certificates = set()
    until = time.monotonic() + PATIENCE
    while after < 50:
        answer = try_job(hooks.world, "j")
        assert answer.status == 201, (calls, answer)
        # a new connection: the API server keeps one open
        certificates.add(served_certificate(operator, hooks.bundles()[0], hooks.host))
        calls += 1
        after += "previous-ca.crt" in hooks.secret()
        assert time.monotonic() < until, operator.text()
    assert calls > 60
    new = hooks.secret()
    assert new["ca.crt"] not in {before["ca.crt"], due[0].certificate}
    assert {ssl.PEM_cert_to_DER_cert(one.decode()) for one in (due[1].certificate, new["tls.crt"])} <= certificates


SLOW = b"POST /validate-kubeflow-org-v1-pytorchjob HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def slow_connections(operator: Operator, count: int) -> Iterator[ssl.SSLSocket]:
    """Connections that have sent the beginning of a large review each."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for _ in range(count):
        plain = socket.create_connection(("127.0.0.1", operator.webhook_port), timeout=PATIENCE)
        connection = context.wrap_socket(plain)
        connection.sendall(SLOW + b"Content-Length: 1000000\r\n\r\n" + b" " * 1000)
        yield connection


def test_slow_connections_do_not_switch_admission_off(
    control_plane: ControlPlane, hooks: Webhooks, make_operator: MakeOperator
):
    """More of them than the server accepts. Every decision is made by the operator: the policy Fail would refuse the
    valid job, and Ignore would admit the invalid one."""
    operator = start(make_operator, control_plane, hooks)
    hooks.install(operator.webhook_port, "Fail")
    hooks.wait_injected()
    hooks.wait_called()
    slow = []
    for connection in slow_connections(operator, 160):
        slow.append(connection)
        if len(slow) % 20 == 0:
            assert operator.probe("/readyz")[0] == 200, len(slow)
            refused = try_job(hooks.world, "0-test")
            assert (refused.status, "denied the request" in refused.message) == (403, True), (len(slow), refused)
            assert try_job(hooks.world, "j").status == 201, len(slow)
    hooks.remove()
    hooks.install(operator.webhook_port, "Ignore")
    hooks.wait_injected()
    hooks.wait_called()
    slow += slow_connections(operator, 160)
    for _ in range(20):
        assert try_job(hooks.world, "0-test").status == 403
    assert operator.probe("/readyz")[0] == 200
    for connection in slow:
        connection.close()
