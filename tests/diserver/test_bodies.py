"""Bodies, parameters and texts: what Go's decoder accepts is accepted, and the rest is refused with one answer."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.virtual_time import VirtualClock, virtual_time
from trainop.diserver.bodies import read_demand, read_failed
from trainop.diserver.journal import HeldLease, Times
from trainop.diserver.limits import MAX_CALLERS, CallerLimiter
from trainop.diserver.query import Query, read_query
from trainop.diserver.records import Record, UnsentAnswer, fit, undelivered
from trainop.diserver.replies import BAD_QUANTITY, Refusal, Replicas, fail, plain, succeed
from trainop.local.api.serving.server import ApiServer
from trainop.runtime.client.client import Client
from trainop.runtime.clock import micro_timestamp


def demand(collectors: Any) -> Any:
    return read_demand(json.dumps({"namespace": "n", "coordinator": "c", "collectors": collectors}).encode()).collectors


@pytest.mark.parametrize(
    ("given_", "replicas", "cpu", "memory", "gpus"),
    [
        ({"replicas": 2, "cpus": 4, "memory": "1Gi", "gpus": "10"}, 2, "4", "1Gi", 10),
        ({"replicas": -3}, 0, "", "", 0),
        ({"REPLICAS": 1, "Cpus": "500m", "cpu": "9"}, 1, "500m", "", 0),
        ({"replicas": None, "gpus": None}, 0, "", "", 0),
        ({"replicas": 1, "cpus": 0, "memory": "0", "gpus": "0.0"}, 1, "", "", 0),
        ({"replicas": 1, "cpus": 0.5, "gpus": 1.5}, 1, "500m", "", 2),
        ({"replicas": 1, "cpus": " 2 "}, 1, "2", "", 0),
        (None, 0, "", "", 0),
    ],
)
def test_demands(given_: Any, replicas: int, cpu: str, memory: str, gpus: int):
    found = demand(given_)
    assert (found.replicas, found.resources.cpu, found.resources.memory, found.gpus) == (replicas, cpu, memory, gpus)


def test_only_the_first_value_counts():
    assert read_demand(b' {"namespace": "n"} {"namespace": "m"} garbage').namespace == "n"
    assert read_demand(b'{"namespace": "n", "Namespace": "m"}').namespace == "m"
    assert read_demand(b"null").namespace == ""


WRONG = [
    b"[]", b"1", b'"x"', b"{", b'{"namespace": 1}', b'{"collectors": []}', b'{"collectors": {"replicas": "1"}}',
    b'{"collectors": {"replicas": 1.0}}', b'{"collectors": {"replicas": true}}', b'{"collectors": {"replicas": 1e3}}',
    b'{"collectors": {"cpus": true}}', b'{"collectors": {"cpus": {}}}', b'{"collectors": {"cpus": NaN}}',
    b'{"collectors": {"replicas": 9223372036854775808}}', b'{"collectors": {"cpus": "1 1"}}', b"\xff\xfe",
    b"{" * 100_000, b"[" * 100_000, b'{"collectors": ' * 50_000, b"1" * 100_000,
    b'{"collectors": {"gpus": 1' + b"0" * 5000 + b"}}", b'{"collectors": {"gpus": "1e999999999"',
    b'{"namespace": "\\ud800"', b"'", b"//", b'{"a": 1e999}'[:-1],
]  # fmt: skip


@pytest.mark.parametrize("raw", WRONG, ids=range(len(WRONG)))
def test_what_is_no_demand_is_refused(raw: bytes):
    for read in (read_demand, read_failed):
        if read is read_failed and b"replicas" not in raw and b"cpus" not in raw and b"gpus" not in raw:
            continue
        with pytest.raises(Refusal) as caught:
            read(raw)
        assert caught.value.status == 400
        assert caught.value.message.startswith("failed to decode request body: ")


def test_texts_of_truncated_bodies():
    for raw, text in ((b"", "EOF"), (b" \n", "EOF"), (b'{"namespace": ', "unexpected EOF")):
        with pytest.raises(Refusal, match=f"^failed to decode request body: {text}$"):
            read_demand(raw)


def test_names_of_failed_pods():
    raw = {"namespace": "n", "coordinator": "c", "collectors": ["p", "p.n", "p.n:80", "q.m"], "learners": None}
    found = read_failed(json.dumps(raw).encode())
    assert (found.collectors, found.learners) == (("p", "q.m"), ())


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        ([], Query()),
        ([("Namespace", "n"), ("namespace", "m")], Query("n")),
        ([("namespace", "n"), ("coordinator", "c"), ("name", "x")], Query("n", name="x")),
        ([("namespace", "n"), ("aggregator", "g"), ("coordinator", "c")], Query("n", coordinator="c")),
        ([("namespace", "")], Query()),
    ],
)
def test_parameters(pairs: list[tuple[str, str]], found: Query):
    assert read_query(pairs) == found


def test_texts_have_nothing_that_the_cli_rewrites():
    assert plain('it\'s "None": True, : False') == "it`s `none`: true, : false"
    assert plain(f"failed to decode request body: {BAD_QUANTITY}").endswith(BAD_QUANTITY)
    assert len(plain("x" * 10_000)) < 3000
    assert json.loads(fail(Refusal(400, "\ud800")).body)["success"] is False


def test_the_order_of_an_answer():
    answer = succeed("text", Replicas("n", "c", [], []))
    assert answer.body == (
        b'{"success":true,"code":0,"message":"text",'
        b'"data":{"namespace":"n","coordinator":"c","collectors":[],"learners":[]}}'
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
ANY = JSON | st.sampled_from(["1Gi", "-1", "1e9", "abc", 10**30, -1])
QUANTITIES = st.dictionaries(st.sampled_from(["replicas", "cpus", "gpus", "memory", "Replicas"]), ANY)
BODIES = st.dictionaries(
    st.sampled_from(["namespace", "coordinator", "collectors", "learners", "NAMESPACE"]),
    ANY | QUANTITIES | st.lists(st.text()),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.binary() | BODIES.map(lambda body: json.dumps(body).encode()))
def test_any_body_is_read_or_refused(raw: bytes):
    for read in (read_demand, read_failed):
        try:
            read(raw)
        except Refusal as refusal:
            answer = json.loads(fail(refusal).body)
            text = answer["message"].replace(BAD_QUANTITY, "")
            assert not any(word in text for word in ("'", '"', "None", ": True", ": False"))


@virtual_time
async def test_a_caller_is_limited_and_others_are_not():
    clock = VirtualClock()
    limiter = CallerLimiter(clock, 10.0, 3)
    assert [limiter.allows("a") for _ in range(5)] == [True, True, True, False, False]
    assert limiter.allows("b")
    await clock.sleep(0.1)
    assert [limiter.allows("a") for _ in range(2)] == [True, False]
    assert all(CallerLimiter(clock, 0.0, 1).allows("a") for _ in range(5))
    for number in range(2 * MAX_CALLERS):
        limiter.allows(str(number))
    assert len(limiter._buckets) <= MAX_CALLERS


def test_a_record_has_as_many_earlier_answers_asfit():
    past = [UnsentAnswer(str(number), "", 200, "x" * 90_000) for number in range(4)]
    record = Record("r", "n", "j", "u", earlier=past)
    assert [each.digest for each in fit(record).earlier] == ["0", "1"]
    assert fit(Record("r", "n", "j", "u", body="x" * 300_000)).body


async def test_nothing_is_written_once_a_lease_may_belong_to_another_server():
    clock = VirtualClock()
    now = 100.0
    clock.monotonic = lambda: now  # type: ignore[method-assign]  # moved by the test
    held = HeldLease(Client(ApiServer().transport()), clock, Times(lease=10.0), {}, Record("r", "ns", "a", "u"))
    now += 7.9
    held.check()
    now += 0.2
    with pytest.raises(Refusal, match="the lease of the job was lost"):
        held.check()


@pytest.mark.parametrize(("age", "kept"), [(9, True), (10, False), (3600, False)])
def test_an_answer_is_remembered_for_its_time(age: int, kept: bool):
    at = datetime(2026, 1, 1, tzinfo=UTC)
    record = Record("r", "ns", "a", "u", digest="d", state="unsent", status=200, body="b")
    lease = {"spec": {"renewTime": micro_timestamp(at)}}
    assert bool(undelivered(record, lease, at + timedelta(seconds=age), 10.0)) == kept
