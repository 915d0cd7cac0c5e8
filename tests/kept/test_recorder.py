"""What the recorder writes, reads back, and leaves out when the disk does not bear it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE
from trainop.kept import recorder as module
from trainop.kept.folder import JobName, Run, create_run
from trainop.kept.logfile import LogFile
from trainop.kept.reader import open_kept
from trainop.kept.recorder import Recorder, read_objects
from trainop.local.api.serving.server import ApiServer
from trainop.runtime import EVENTS, PODS, SECRETS, ApiError, Client, NotFoundError
from trainop.runtime.lowlevel import Request

JOBS = [JobName("kubeflow.org/v1", "PyTorchJob", "default", "train")]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return create_run("train", [], JOBS)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def recorder(run: Run, said: list[str]) -> Iterator[Recorder]:
    made = Recorder(run, {"pods", "events"}, said.append)
    yield made
    made.close()


def pod(name: str, label: str = "") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "labels": {"x": label}}
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": "local"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def read_log(client: Client, name: str, **query: str) -> bytes:
    stream = await client.open(Request("GET", PODS.path("default", name, "log"), query))
    return b"".join([chunk async for chunk in stream.chunks()])


async def test_the_final_state_of_objects_is_read_back(run: Run, recorder: Recorder):
    api = ApiServer()
    api.listen(recorder)
    client = Client(api.transport())
    for name in ("a", "b", "c"):
        await client.create(PODS, pod(name), namespace="default")
    await client.patch(PODS, "b", "default", {"metadata": {"labels": {"x": "new"}}})
    await client.delete(PODS, "c", "default", grace_seconds=0)
    replaced = await client.create(PODS, pod("c", "second"), namespace="default")
    await client.delete(PODS, "a", "default", grace_seconds=0)
    recorder.close()
    kept = Client(open_kept(run))
    listed = {each["metadata"]["name"]: each for each in (await kept.list(PODS, "default")).items}
    assert set(listed) == {"a", "b", "c"}  # the last pod of each name, as logs are read by it
    assert listed["b"]["metadata"]["labels"] == {"x": "new"}
    assert listed["c"]["metadata"]["uid"] == replaced["metadata"]["uid"]
    chosen = await kept.list(PODS, "default", label_selector="x=second")
    assert [each["metadata"]["name"] for each in chosen.items] == ["c"]
    with pytest.raises(NotFoundError):
        await kept.get(PODS, "d", "default")
    with pytest.raises(ApiError, match="run train-1 has ended"):
        await kept.delete(PODS, "a", "default")


async def test_each_attempt_has_a_log(run: Run, recorder: Recorder):
    metadata = pod("a")["metadata"]
    for attempt in (1, 2, 3):
        copy = recorder.log(metadata, "c")
        copy.append(b"attempt %d\n" % attempt, attempt)
        copy.end()
    recorder.close()
    kept = Client(open_kept(run))
    assert await read_log(kept, "a") == b"attempt 3\n"
    assert await read_log(kept, "a", container="c", previous="true") == b"attempt 2\n"
    assert await read_log(kept, "a", attempt="1") == b"attempt 1\n"
    with pytest.raises(NotFoundError, match="attempts with a log: 1, 2, 3"):
        await read_log(kept, "a", attempt="4")
    with pytest.raises(NotFoundError, match="attempts with a log: none"):
        await read_log(kept, "..")


async def test_two_hundred_replicas_are_kept_within_the_limit(
    run: Run, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "MAX_LOGS", 20 << 20)
    monkeypatch.setattr(module, "MAX_QUEUED", 1 << 30)
    copies = [recorder.log(pod(f"w-{number}")["metadata"], "c") for number in range(200)]
    for block in range(20):
        for copy in copies:
            copy.append(b"%d " % block + b"x" * 20_000 + b"\n", block)
    for copy in copies:
        copy.end()
    recorder.close()
    logs = list(run.logs.rglob("*.log"))
    assert len(logs) == 200
    assert sum(each.stat().st_size for each in logs) <= 20 << 20
    kept = Client(open_kept(run))
    assert (await read_log(kept, "w-199")).splitlines()[-1].startswith(b"19 ")
    assert not recorder.broken


def test_a_container_that_crashes_for_ever_does_not_fill_the_folder(
    run: Run, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "MAX_FILES", 10)
    for number in range(100):
        copy = recorder.log(pod("a")["metadata"], "c")
        copy.append(b"%d\n" % number, number)
        copy.end()
    recorder.close()
    assert sorted(int(each.name.split(".")[1]) for each in run.logs.rglob("*.log")) == list(range(91, 101))


def test_objects_that_change_for_ever_do_not_fill_the_folder(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_OBJECTS", 100_000)
    monkeypatch.setattr(module, "MAX_GONE", 5)
    objects = module._Objects(run.objects)
    for number in range(5_000):
        body = json.dumps({"metadata": {"uid": str(number % 10), "name": "a"}, "number": number}).encode()
        objects.add("pods", str(number % 10), body, deleted=False)
        objects.flush()
    for number in range(100):
        objects.add("events", f"e{number}", b'{"metadata": {"uid": "e%d"}}' % number, deleted=True)
        objects.flush()
    objects.close()
    assert run.objects.stat().st_size <= 110_000
    found = read_objects(run.objects)
    assert [found[str(number)][2]["number"] for number in range(10)] == list(range(4_990, 5_000))
    assert {"e95", "e99"} <= set(found)


def test_a_line_that_was_not_written_completely_is_left_out(run: Run):
    good = b'{"table": "pods", "deleted": false, "object": {"metadata": {"uid": "1"}}}\n'
    run.objects.write_bytes(good + b'{"table": "pods", "object": {"metadata"')
    assert list(read_objects(run.objects)) == ["1"]
    run.objects.write_bytes(b"\0\0\n[]\n1\n" + good)
    assert list(read_objects(run.objects)) == ["1"]


def test_a_full_disk_is_said_once_and_ends_the_writing(
    run: Run, recorder: Recorder, said: list[str], monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LogFile, "append", full)
    copy = recorder.log(pod("a")["metadata"], "c")
    for _ in range(100):
        copy.append(b"x\n", 1)
    recorder.close()
    assert said == [f"No space left on device ({run.path})"]
    assert recorder.broken


def test_a_disk_that_hangs_neither_blocks_nor_fills_the_memory(
    run: Run, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "MAX_QUEUED", 1_000_000)
    go_on = threading.Event()
    recorder.submit(lambda: (go_on.wait(PATIENCE), None)[1])
    copy = recorder.log(pod("a")["metadata"], "c")
    for _ in range(1_000):
        copy.append(b"x" * 9_999 + b"\n", 1)
    assert recorder._queued <= 1_010_000
    go_on.set()
    end = time.monotonic() + PATIENCE
    while recorder._queued:
        assert time.monotonic() < end
        time.sleep(0.01)
    copy.append(b"last\n", 2)
    recorder.close()
    text = next(run.logs.rglob("*.log")).read_bytes()
    assert b"8990000 bytes of this log are not kept: the disk was too slow" in text
    assert text.endswith(b" F last\n")


async def test_what_is_no_kind_of_the_commands_is_not_kept(run: Run, recorder: Recorder):
    api = ApiServer()
    api.listen(recorder)
    client = Client(api.transport())
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"password": "hush"}}
    await client.create(SECRETS, secret, namespace="default")
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}}
    await client.create(EVENTS, event, namespace="default")
    recorder.close()
    assert [each[0] for each in read_objects(run.objects).values()] == ["events"]
