"""`trainop.progress`: the file that trainings copy into their images."""

from __future__ import annotations

import ast
import http.server
import json
import os
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import trainop.progress as client
from tests.patience import PATIENCE
from trainop.runtime.webhook.certificates import issue, make_authority

SOURCE = Path(client.__file__)


class Endpoint:
    """Takes reports over TLS."""

    def __init__(self, folder: Path) -> None:
        self.taken: list[tuple[str, dict[str, Any]]] = []
        self.status = 200
        now = datetime.now(UTC)
        authority = make_authority("ca", "o", now)
        pair = issue(authority, ["localhost"], now)
        for name, content in (("ca.crt", authority.certificate), ("tls.crt", pair.certificate), ("tls.key", pair.key)):
            (folder / name).write_bytes(content)
        (folder / "token").write_text("secret\n")
        self.folder = folder
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                owner.taken.append((self.headers["Authorization"], json.loads(body)["trainerStatus"]))
                self.send_response(owner.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def variables(self) -> dict[str, str]:
        return {
            client.URL: f"https://localhost:{self.server.server_address[1]}/status",
            client.CA_CERT: str(self.folder / "ca.crt"),
            client.TOKEN: str(self.folder / "token"),
        }

    def reporter(self) -> client.Reporter:
        return client.Reporter(*self.variables.values())

    def end(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    made = Endpoint(tmp_path)
    yield made
    made.end()


def test_only_the_standard_library_is_imported():
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"), feature_version=(3, 8))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= set(sys.stdlib_module_names)


def test_what_is_sent(endpoint: Endpoint):
    reporter = endpoint.reporter()
    assert reporter.report(10, 100, False, {"loss": 0.25, "checkpoint_step": 5})
    reporter.flush(PATIENCE)
    ((authorization, status),) = endpoint.taken
    assert authorization == "Bearer secret"
    assert datetime.fromisoformat(status.pop("lastUpdatedTime")).utcoffset() is not None
    assert status == {
        "progressPercentage": 10,
        "metrics": [
            {"name": "current_step", "value": "10"},
            {"name": "total_steps", "value": "100"},
            {"name": "loss", "value": "0.25"},
            {"name": "checkpoint_step", "value": "5"},
        ],
    }


def test_the_first_and_the_last_are_sent_at_once_and_others_rarely(endpoint: Endpoint):
    reporter = endpoint.reporter()
    assert [reporter.report(step, 1000, False, {}) for step in range(1, 1001)].count(True) == 2
    reporter.flush(PATIENCE)
    assert endpoint.taken[-1][1]["progressPercentage"] == 100
    assert endpoint.taken[-1][1]["estimatedRemainingSeconds"] == 0


def test_the_token_and_the_certificates_are_read_anew(endpoint: Endpoint):
    reporter = endpoint.reporter()
    reporter.report(1, 10, True, {})
    reporter.flush(PATIENCE)
    (endpoint.folder / "token").write_text("newer")
    reporter.report(2, 10, True, {})
    reporter.flush(PATIENCE)
    assert [authorization for authorization, _ in endpoint.taken] == ["Bearer secret", "Bearer newer"]


def test_limits_of_the_protocol(endpoint: Endpoint):
    reporter = endpoint.reporter()
    metrics: dict[str, object] = {f"m{number}": "x" * 100 for number in range(400)}
    reporter.report(None, None, True, metrics | {"empty": ""})
    reporter.flush(PATIENCE)
    taken = endpoint.taken[0][1]["metrics"]
    assert len(taken) == 256
    assert {len(each["value"]) for each in taken} == {64}
    reporter.report(500, 100, True, {})
    reporter.flush(PATIENCE)
    assert endpoint.taken[1][1]["progressPercentage"] == 100


@pytest.mark.parametrize("fault", ["refused", "no server", "no token", "no certificate", "not a number"])
def test_a_fault_never_reaches_the_training(endpoint: Endpoint, fault: str):
    if fault == "refused":
        endpoint.status = 403
    if fault == "no token":
        (endpoint.folder / "token").unlink()
    if fault == "no certificate":
        (endpoint.folder / "ca.crt").write_text("no")
    url = "https://localhost:1/" if fault == "no server" else endpoint.variables[client.URL]
    reporter = client.Reporter(url, str(endpoint.folder / "ca.crt"), str(endpoint.folder / "token"))
    value: object = float("nan") if fault == "not a number" else 1.0
    began = time.monotonic()
    for _ in range(3):
        reporter.report(1, 10, True, {"loss": value})
    assert time.monotonic() - began < PATIENCE
    reporter.flush(PATIENCE)


def test_a_report_does_not_wait(endpoint: Endpoint):
    held = threading.Event()
    reporter = endpoint.reporter()
    reporter._send = lambda _body: held.wait(PATIENCE)  # type: ignore[method-assign,assignment]  # a server that hangs
    for _ in range(100):
        assert reporter.report(1, 10, True, {})
    held.set()
    reporter.flush(PATIENCE)


@pytest.mark.parametrize(
    ("variables", "first"),
    [
        ({}, True),
        ({"RANK": "0"}, True),
        ({"RANK": "3"}, False),
        ({"OMPI_COMM_WORLD_RANK": "1", "RANK": "0"}, False),
        ({"PMI_RANK": "0"}, True),
        ({"PROCESS_ID": "2"}, False),
        ({"PADDLE_TRAINER_ID": "1"}, False),
        ({"TF_CONFIG": '{"cluster":{"worker":["a","b"]},"task":{"type":"worker","index":0}}'}, True),
        ({"TF_CONFIG": '{"cluster":{"worker":["a","b"]},"task":{"type":"worker","index":1}}'}, False),
        ({"TF_CONFIG": '{"cluster":{"chief":["a"],"worker":["b"]},"task":{"type":"worker","index":0}}'}, False),
        ({"TF_CONFIG": '{"cluster":{"chief":["a"],"worker":["b"]},"task":{"type":"chief","index":0}}'}, True),
        ({"TF_CONFIG": "no json"}, True),
        ({"TF_CONFIG": "[]"}, True),
    ],
    ids=range(13),
)
def test_only_rank_0_reports(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], first: bool):
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "PADDLE_TRAINER_ID", "PROCESS_ID", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert client.is_first() == first


def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(client.URL, raising=False)
    client._reporters.clear()
    threads = threading.active_count()
    assert client.report(step=1, total=10, loss=0.5) is False
    assert threading.active_count() == threads


def test_the_function_of_the_module(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch):
    for name, value in {**endpoint.variables, "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    client._reporters.clear()
    assert client.report(step=1, total=4, loss=1.5)
    client._reporters[os.getpid()].flush(PATIENCE)
    client._reporters.clear()
    assert endpoint.taken[0][1]["progressPercentage"] == 25
