"""Representations and tracebacks, which may be logged, contain no secrets."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import msgspec
import pytest
import structlog

from trainop.runtime.cache.watchevents import WatchEvent
from trainop.runtime.client.client import Listing, Page
from trainop.runtime.client.cluster import AuthHeaders, ClusterConfig
from trainop.runtime.client.credentials import StaticCredentials, bearer
from trainop.runtime.client.transport import Request, Response
from trainop.runtime.manager.logs import configure_logging
from trainop.runtime.objects.metadata import Unstructured
from trainop.runtime.webhook.admission import AdmissionRequest, AdmissionResponse
from trainop.runtime.webhook.certificates import Pair
from trainop.runtime.webhook.keyring import Keyring

SECRET = "hunter2"
OBJECT = {"kind": "Secret", "metadata": {"name": "s"}, "data": {"password": SECRET}}
BODY = msgspec.json.encode(OBJECT)


@pytest.mark.parametrize(
    "shown",
    [
        Request("GET", "/api", headers={"authorization": f"Bearer {SECRET}"}),
        Request("POST", "/api", body=BODY),
        Response(200, {}, BODY),
        bearer(SECRET),
        AuthHeaders({}, key=SECRET.encode()),
        StaticCredentials.token(SECRET),
        StaticCredentials.basic("me", SECRET),
        ClusterConfig("https://x", StaticCredentials.token(SECRET), client_key=SECRET.encode()),
        ClusterConfig("https://x", proxy=f"http://me:{SECRET}@proxy", headers=(("authorization", SECRET),)),
        Pair(b"", SECRET.encode()),
        Keyring(authority=Pair(b"", SECRET.encode())),
        Unstructured(OBJECT),
        Listing([OBJECT], "1"),
        Page([msgspec.Raw(BODY)], "1", "", 1),
        WatchEvent("ADDED", msgspec.Raw(BODY)),
        AdmissionRequest("u", "CREATE", object=OBJECT, old_object=OBJECT, options=OBJECT, user_info=OBJECT),
        AdmissionResponse(True, patch=({"value": SECRET},)),
    ],
    ids=lambda shown: type(shown).__name__,
)
def test_no_representation_shows_a_secret(shown: object):
    assert SECRET not in repr(shown)
    assert SECRET not in str(shown)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    structlog.reset_defaults()
    root.handlers = handlers
    root.setLevel(level)


def _fail() -> None:
    password = "".join(SECRET)
    raise ValueError(f"no luck with {len(password)} characters")


@pytest.mark.parametrize("json", [False, True])
def test_a_traceback_of_our_set_up_has_no_local_variables(json: bool):
    out = io.StringIO()
    configure_logging(json=json, stream=out)
    try:
        _fail()
    except ValueError:
        structlog.get_logger().exception("it failed", job="a")
        logging.getLogger("library").exception("it failed there")
    assert out.getvalue().count("no luck with 7 characters") == 2
    assert "in _fail" in out.getvalue()
    assert SECRET not in out.getvalue()


def test_without_our_set_up_a_traceback_has_local_variables(capsys: pytest.CaptureFixture[str]):
    """The documentation warns of this. If the test fails, structlog has changed, and the page needs an update."""
    structlog.reset_defaults()
    try:
        _fail()
    except ValueError:
        structlog.get_logger().exception("it failed")
    assert SECRET in capsys.readouterr().out
