"""Persistence of the embedded API server: no acknowledged write is lost, however the process ends."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.local.api.support import CONFIG_MAPS, DEFINITIONS, PODS, TASKS, Api, config_map, definition, task
from trainop.local.api.storage.persistence import Journal, Pending


def journal_of(api: Api) -> Journal:
    journal = api.server._journal
    assert journal is not None
    return journal


def crash(api: Api) -> None:
    """Release the file without writing pending changes, like a killed process."""
    journal_of(api)._database.close()


async def test_continues_after_a_restart(tmp_path: Path):
    path = tmp_path / "cluster" / "objects.db"
    api = Api(persist=path)
    await api.create(DEFINITIONS, definition())
    kept = await api.create(TASKS, task())
    await api.create(CONFIG_MAPS, config_map("gone"))
    await api("DELETE", f"{CONFIG_MAPS}/gone")
    last = (await api("GET", PODS)).json["metadata"]["resourceVersion"]
    await api.server.close()
    again = Api(persist=path)
    assert (await again("GET", f"{TASKS}/t")).json == kept
    assert (await again("GET", f"{CONFIG_MAPS}/gone")).code == 404
    assert (await again("GET", PODS)).json["metadata"]["resourceVersion"] == last
    later = await again.create(CONFIG_MAPS, config_map("later"))
    assert int(later["metadata"]["resourceVersion"]) > int(last)
    watch = await again.watch(TASKS, resourceVersion=str(int(last) - 2))
    assert (await watch.next())["object"]["code"] == 410
    await again.server.close()


async def test_versions_never_go_back_even_after_a_crash(tmp_path: Path):
    path = tmp_path / "objects.db"
    crashed = Api(persist=path)
    await crashed.create(CONFIG_MAPS, config_map("kept"))
    # visible to watches only, because no request was answered
    seen = crashed.server._backend.store.put("configmaps", ("default", "lost"), config_map("lost"))
    crash(crashed)
    again = Api(persist=path)
    assert (await again("GET", CONFIG_MAPS)).items == ["kept"]
    made = await again.create(CONFIG_MAPS, config_map("other"))
    assert int(made["metadata"]["resourceVersion"]) > seen.version
    await again.server.close()


WRITER = """
import asyncio, json, os, sys
from pathlib import Path
from trainop.local.api.serving.server import ApiServer
from trainop.runtime.client.transport import Request

MAPS = "/api/v1/namespaces/default/configmaps"

async def send(server, wanted, method, path, name="", number=0, content_type="application/json"):
    body = {"metadata": {"name": name}, "data": {"number": str(number), "text": f"{number}," * 500}}
    data = json.dumps(body).encode() if name else b""
    answer = await server.transport().send(Request(method, path, {}, data, content_type))
    assert answer.status == wanted, answer.body

async def write(server, writer):
    for number in range(100_000):
        await send(server, 201, "POST", MAPS, f"{writer}-{number}", number)
        if number == 0:
            await send(server, 201, "POST", MAPS, writer, number)
        else:
            await send(server, 200, "PATCH", f"{MAPS}/{writer}", writer, number, "application/merge-patch+json")
        if number >= 5:
            await send(server, 200, "DELETE", f"{MAPS}/{writer}-{number - 5}")
        os.write(1, f"{writer} {number}\\n".encode())

async def main():
    server = ApiServer(persist=Path(sys.argv[1]))
    async with asyncio.TaskGroup() as group:
        group.create_task(server.run())
        for writer in sys.argv[2:]:
            group.create_task(write(server, writer))

asyncio.run(main())
"""


def write_until_killed(path: Path, writers: list[str], seconds: float) -> dict[str, int]:
    """Kill the process while writers run; returns the last number acknowledged to each writer."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path), *writers], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline()]  # it is at work
        time.sleep(seconds)
        assert child.poll() is None
        child.send_signal(signal.SIGKILL)
        lines += child.stdout.read().splitlines()
    return {writer: int(number) for writer, number in (line.decode().split() for line in lines)}


def check(found: dict[str, Any], writer: str, last: int) -> None:
    """Check that all acknowledged writes are stored, with at most the three writes after them, and no partial
    object."""
    current = int(found[writer]["number"])
    assert last <= current <= last + 1
    numbers = {int(name.rpartition("-")[2]) for name in found if name.startswith(f"{writer}-")}
    acknowledged = set(range(max(last - 4, 0), last + 1))
    assert acknowledged - numbers <= ({last - 4} if current > last else set())
    assert numbers - acknowledged <= {last + 1}
    assert current <= max(numbers)
    for name, number in ((writer, current), *((f"{writer}-{number}", number) for number in numbers)):
        assert found[name] == {"number": str(number), "text": f"{number}," * 500}


async def test_what_was_acknowledged_survives_a_kill(tmp_path: Path):
    path = tmp_path / "objects.db"
    draw = random.Random(14)
    kept: dict[str, Any] = {}
    for turn in range(4):
        writers = [f"t{turn}w{writer}" for writer in "abcdef"]
        last = await asyncio.to_thread(write_until_killed, path, writers, draw.uniform(0.05, 0.4))
        again = Api(persist=path)
        found = {item["metadata"]["name"]: item["data"] for item in (await again("GET", CONFIG_MAPS)).json["items"]}
        await again.server.close()
        for writer, number in last.items():
            check(found, writer, number)
        assert {name: found[name] for name in kept} == kept
        kept = found


@pytest.mark.parametrize("damage", ["header", "middle", "cut", "text", "body"])
async def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path, damage: str):
    path = tmp_path / "objects.db"
    api = Api(persist=path)
    for number in range(40):
        await api.create(CONFIG_MAPS, {**config_map(f"c{number}"), "data": {"text": "x" * 3000}})
    await api.server.close()
    whole = path.read_bytes()
    match damage:
        case "header":
            path.write_bytes(b"\0" * 100 + whole[100:])
        case "middle":
            path.write_bytes(whole[:8192] + b"\xff" * 16384 + whole[24576:])
        case "cut":
            path.write_bytes(whole[: len(whole) // 2])
        case "text":
            path.write_text("not a database " * 1000)
        case "body":
            with sqlite3.connect(path) as database:
                database.execute("UPDATE objects SET body = substr(body, 1, 50) WHERE name = 'c7'")
            database.close()
    with pytest.raises(OSError, match=r"objects\.db is damaged \(.*\): restore a copy of it, or remove it"):
        Api(persist=path)


async def test_a_file_has_one_server(tmp_path: Path):
    path = tmp_path / "objects.db"
    api = Api(persist=path)
    with pytest.raises(OSError, match=r"objects\.db is in use by another cluster"):
        Api(persist=path)
    await api.create(CONFIG_MAPS, config_map())
    await api.server.close()
    again = Api(persist=path)
    assert (await again("GET", CONFIG_MAPS)).items == ["c"]
    await again.server.close()


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of changes in each commit."""
    sizes: list[int] = []
    commit = Journal._commit

    def counted(self: Journal, pending: Pending, version: int) -> None:
        commit(self, pending, version)
        sizes.append(len(pending))

    monkeypatch.setattr(Journal, "_commit", counted)
    return sizes


async def test_requests_at_once_share_a_commit(tmp_path: Path, commits: list[int]):
    api = Api(persist=tmp_path / "objects.db")
    await api.create(CONFIG_MAPS, config_map("first"))
    commits.clear()
    await asyncio.gather(*(api.create(CONFIG_MAPS, config_map(f"c{number}")) for number in range(200)))
    assert sum(commits) == 200
    assert len(commits) <= 3
    await api.server.close()


async def test_reads_and_refusals_do_not_commit(tmp_path: Path, commits: list[int]):
    api = Api(persist=tmp_path / "objects.db")
    await api.create(CONFIG_MAPS, config_map())
    commits.clear()
    assert (await api("GET", CONFIG_MAPS)).code == 200
    assert (await api("POST", CONFIG_MAPS, config_map())).code == 409
    assert (await api.patch(f"{CONFIG_MAPS}/c", {"data": {"a": "b"}})).code == 200
    assert commits == []
    await api.server.close()


async def test_a_full_disk_refuses_changes_and_serves_reads(tmp_path: Path):
    path = tmp_path / "objects.db"
    api = Api(persist=path)
    await api.create(CONFIG_MAPS, config_map("before"))
    database = journal_of(api)._database
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages + 2}")
    large = {**config_map("large"), "data": {"text": "x" * 100_000}}
    refused = await api("POST", CONFIG_MAPS, large)
    assert (refused.code, refused.json["reason"]) == (500, "InternalError")
    assert refused.json["message"] == ("Internal error occurred: the change is not on disk: database or disk is full")
    assert (await api("POST", CONFIG_MAPS, config_map("later"))).code == 500
    assert (await api("GET", f"{CONFIG_MAPS}/before")).code == 200
    assert (await api("GET", f"{CONFIG_MAPS}/later")).code == 404  # not even begun
    database.execute("PRAGMA max_page_count = 100000")
    await api.create(CONFIG_MAPS, config_map("after"))
    crash(api)
    again = Api(persist=path)
    assert (await again("GET", CONFIG_MAPS)).items == ["after", "before", "large"]
    await again.server.close()


async def test_a_full_disk_does_not_end_the_background_work(tmp_path: Path):
    path = tmp_path / "objects.db"
    api = Api(persist=path)
    background = asyncio.create_task(api.server.run())
    await api.create("/api/v1/namespaces", {"metadata": {"name": "n"}})
    await api.create("/api/v1/namespaces/n/configmaps", config_map())
    database = journal_of(api)._database
    database.execute("PRAGMA query_only = 1")  # no write succeeds
    assert (await api("DELETE", "/api/v1/namespaces/n")).code == 500
    for _ in range(3):
        await asyncio.sleep(0.01)
        await api.clock.advance(2)
        assert not background.done()
    database.execute("PRAGMA query_only = 0")
    while journal_of(api)._last_commit_failed:
        await asyncio.sleep(0.01)
        await api.clock.advance(2)
    background.cancel()
    await asyncio.wait([background])
    crash(api)
    again = Api(persist=path)
    assert (await again("GET", "/api/v1/namespaces/n")).code == 404
    await again.server.close()


async def test_a_client_that_leaves_does_not_stop_the_commit(tmp_path: Path):
    path = tmp_path / "objects.db"
    api = Api(persist=path)
    asking = [asyncio.create_task(api.create(CONFIG_MAPS, config_map(f"c{number}"))) for number in range(5)]
    await asyncio.sleep(0)
    for task_ in asking:
        task_.cancel()
    await asyncio.wait(asking)
    await api.create(CONFIG_MAPS, config_map("last"))
    crash(api)
    again = Api(persist=path)
    assert (await again("GET", CONFIG_MAPS)).items == [*(f"c{number}" for number in range(5)), "last"]
    await again.server.close()
