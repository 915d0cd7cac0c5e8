"""exec and attach: commands in running containers, over the WebSocket protocol of kubectl."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
import pytest
import pytest_asyncio

from tests.local.node.world import World
from tests.patience import PATIENCE
from trainop.local.api.serving import http_server
from trainop.runtime.objects.metadata import Json

pytestmark = pytest.mark.asyncio(loop_scope="session")

V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
SLEEPS = ("sleep", "3600")
T = TypeVar("T")


@dataclass
class Client:
    """The client's end of a session."""

    socket: aiohttp.ClientWebSocketResponse

    async def send(self, channel: int, data: bytes) -> None:
        await self.socket.send_bytes(bytes([channel]) + data)

    async def close_stdin(self) -> None:
        await self.socket.send_bytes(bytes([255, STDIN]))

    async def read(self, until: str = "") -> dict[int, str]:
        """What arrives on each channel, up to the end or until stdout has this text."""
        found = {STDOUT: b"", STDERR: b"", ERROR: b""}
        async with asyncio.timeout(PATIENCE):
            async for message in self.socket:
                assert message.type is aiohttp.WSMsgType.BINARY, message
                found[message.data[0]] += message.data[1:]
                if until and until in found[STDOUT].decode():
                    break
        return {channel: data.decode() for channel, data in found.items()}


async def until(look: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> None:
    """Looks again until what is seen is as demanded."""
    async with asyncio.timeout(PATIENCE):
        while not holds(await look()):  # noqa: ASYNC110  # another process: only polling shows it
            await asyncio.sleep(0.05)


class Reached:
    """A node whose API server is reached over HTTP."""

    def __init__(self, world: World, url: str, session: aiohttp.ClientSession) -> None:
        self.world = world
        self.url = url
        self.http = session

    @asynccontextmanager
    async def connect(self, pod: str, *command: str, protocol: str = V5, **options: bool) -> AsyncIterator[Client]:
        """A session; without a command, that of attach."""
        wanted = {"stdin": False, "stdout": True, "stderr": True, "tty": False, **options}
        query = [
            *(("command", word) for word in command),
            *((key, str(value).lower()) for key, value in wanted.items()),
        ]
        path = f"{self.url}/api/v1/namespaces/team/pods/{pod}/{'exec' if command else 'attach'}"
        # the test itself decides when the connection ends
        async with self.http.ws_connect(path, params=query, protocols=(protocol,), autoclose=True) as socket:
            assert socket.protocol == protocol
            yield Client(socket)

    async def run(self, pod: str, *command: str, **options: Any) -> tuple[str, str, Json]:
        """stdout, stderr and the Status of a command without input."""
        async with self.connect(pod, *command, **options) as client:
            found = await client.read()
        return found[STDOUT], found[STDERR], json.loads(found[ERROR])

    async def refusal(self, pod: str, **query: str) -> tuple[int, str]:
        """The error of a handshake."""
        path = f"{self.url}/api/v1/namespaces/team/pods/{pod}/exec"
        headers = {
            "Connection": "Upgrade",
            "Upgrade": query.pop("upgrade", "websocket"),
            "Sec-WebSocket-Protocol": query.pop("protocol", V5),
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
        }
        async with self.http.get(path, params=query, headers=headers) as answer:
            status = await answer.json()
            assert status["kind"] == "Status"
            return answer.status, status["message"]


@pytest_asyncio.fixture(loop_scope="session")
async def reached(world: World) -> AsyncIterator[Reached]:
    async for found in reach(world):
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def isolated_one(isolated: World) -> AsyncIterator[Reached]:
    async for found in reach(isolated):
        yield found


async def reach(world: World) -> AsyncIterator[Reached]:
    world.api.exec_source = world.node.open_exec
    world.api.log_source = world.node.open_log
    server = http_server.HttpServer(world.api._backend, world.api.answer, world.api._router.connect)
    world.api._backend.tokens.add("secret")
    url = await server.start("127.0.0.1", 0, None)
    try:
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer secret"}) as session:
            yield Reached(world, url, session)
    finally:
        await server.stop()


async def started(world: World, *argv: str, **spec: Any) -> str:
    name = await world.start(*(argv or SLEEPS), terminationGracePeriodSeconds=1, **spec)
    await world.running(name)
    return name


async def test_a_command_runs_where_its_container_does(reached: Reached):
    main = {"env": [{"name": "ANSWER", "value": "42"}], "workingDir": "/usr"}
    shows = 'echo "$ANSWER $PWD $HOSTNAME"; id -u; readlink /proc/self/ns/net /proc/self/ns/pid'
    pod = await started(reached.world, "sh", "-c", f"{shows}; echo shown; exec sleep 3600", main=main)
    shown = await reached.world.log_with(pod, "shown\n")
    out, errors, status = await reached.run(pod, "sh", "-c", f"{shows}; echo oops >&2; exit 3")
    assert out.startswith(f"42 /usr {pod}\n")
    assert f"{out}shown\n" == shown
    assert errors == "oops\n"
    assert (status["status"], status["reason"]) == ("Failure", "NonZeroExitCode")
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
    assert (await reached.run(pod, "true"))[2] == {"metadata": {}, "status": "Success"}


async def test_a_command_that_cannot_start_says_so(reached: Reached):
    pod = await started(reached.world)
    _, _, status = await reached.run(pod, "no-such-command")
    assert (status["reason"], status["code"]) == ("InternalError", 500)
    assert 'exec: "no-such-command": executable file not found in $PATH' in status["message"]


async def test_stdin_ends_when_the_client_closes_it(reached: Reached):
    pod = await started(reached.world)
    async with reached.connect(pod, "sh", "-c", "cat; echo end", stdin=True) as client:
        await client.send(STDIN, b"hello ")
        assert (await client.read(until="hello "))[STDOUT] == "hello "
        await client.close_stdin()
        found = await client.read()
    assert (found[STDOUT], json.loads(found[ERROR])["status"]) == ("end\n", "Success")


async def test_text_frames_of_version_4_are_input_too(isolated_one: Reached):
    """As sent by the Python client of Kubernetes, which has no way to close stdin."""
    pod = await started(isolated_one.world)
    async with isolated_one.connect(pod, "head", "-n1", stdin=True, protocol=V4) as client:
        await client.socket.send_str("\0line\n")
        assert (await client.read())[STDOUT] == "line\n"


async def test_a_terminal_has_a_size_and_passes_signals(reached: Reached):
    pod = await started(reached.world)
    script = 'read line; stty size; trap "exit 7" INT; test -t 2 && echo "term=$TERM and $line"; read line'
    async with reached.connect(pod, "sh", "-c", script, stdin=True, tty=True) as client:
        await client.send(RESIZE, b'{"Width": 123, "Height": 45}')
        await client.send(STDIN, b"typed\r")
        assert "45 123" in (await client.read(until="and typed"))[STDOUT]
        await client.send(STDIN, b"\x03")
        found = await client.read()
    assert json.loads(found[ERROR])["details"]["causes"] == [{"reason": "ExitCode", "message": "7"}]


async def test_large_output_is_complete_and_held_back_for_a_slow_client(isolated_one: Reached):
    pod = await started(isolated_one.world)
    size = 20_000_000
    count = f"head -c {size} /dev/zero > $0; echo written >&2"
    async with isolated_one.connect(pod, "sh", "-c", count, "/dev/stdout") as client:
        received = len((await client.socket.receive()).data) - 1
        written = await settled(isolated_one, pod)
        assert received <= written < size / 2  # the rest fits into no buffer of pipes and sockets
        messages = {STDOUT: received, STDERR: 0, ERROR: 0}
        async for message in client.socket:
            messages[message.data[0]] += len(message.data) - 1
    assert (messages[STDOUT], messages[STDERR]) == (size, len("written\n"))


async def settled(reached: Reached, pod: str) -> int:
    """The bytes that `head` in the pod has written, once two looks in a row show the same."""
    script = "for p in /proc/[0-9]*; do grep -qs ^head $p/comm && grep ^wchar $p/io; done"
    last = ""
    async with asyncio.timeout(PATIENCE):
        while not last or last != (now := (await reached.run(pod, "sh", "-c", f"sleep 0.2; {script}"))[0]):
            last = now if last else (await reached.run(pod, "sh", "-c", script))[0]
    return int(last.split()[1])


async def test_a_command_ends_with_its_client(reached: Reached):
    pod = await started(reached.world)
    async with reached.connect(pod, "sh", "-c", "sleep 3601 & (sleep 3602 &); echo $$ up; wait") as client:
        out = (await client.read(until="up"))[STDOUT]
        client.socket._response.connection.transport.abort()  # type: ignore[union-attr]  # it is open
    group = out.split()[0]
    # the sessions of processes are the sixth word of their status
    probe = f"cat /proc/[0-9]*/stat 2>/dev/null | cut -d' ' -f6 | grep -cx {group}"
    await until(lambda: reached.run(pod, "sh", "-c", probe), lambda ran: ran[0] == "0\n")


async def test_a_session_ends_with_the_pod(reached: Reached):
    pod = await started(reached.world)
    async with reached.connect(pod, "sh", "-c", "echo up; sleep 3600") as client:
        await client.read(until="up")
        await reached.world.delete(pod, grace=0)
        found = await client.read()
    assert json.loads(found[ERROR])["details"]["causes"][0]["message"] == "137"


async def test_a_process_in_the_background_does_not_hold_the_session(reached: Reached):
    pod = await started(reached.world)
    async with asyncio.timeout(PATIENCE):
        out, _, status = await reached.run(pod, "sh", "-c", "sleep 3600 & echo started")
    assert (out, status["status"]) == ("started\n", "Success")


async def test_garbage_ends_or_changes_nothing(isolated_one: Reached):
    pod = await started(isolated_one.world)
    async with isolated_one.connect(pod, "sh", "-c", "read line; echo got $line", stdin=True) as client:
        for garbage in (
            b"",
            b"\x09x",
            b"\x04{",
            b'\x04{"Width":-1,"Height":99999999}',
            b"\xff\x01",
            b"\xff",
            b"\x03no",
        ):
            await client.socket.send_bytes(garbage)
        await client.send(STDIN, b"it\n")
        assert (await client.read())[STDOUT] == "got it\n"
    async with isolated_one.connect(pod, "cat", stdin=True) as client:
        client.socket._response.connection.transport.write(b"\xff" * 64)  # type: ignore[union-attr]  # not a frame
        async with asyncio.timeout(PATIENCE):
            assert (await client.socket.receive()).type in {aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED}
    assert (await isolated_one.run(pod, "true"))[2]["status"] == "Success"


async def test_sessions_are_limited_and_the_server_stays_responsive(
    isolated_one: Reached, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(http_server, "MAX_SESSIONS", 20)
    pod = await started(isolated_one.world)

    async def attempt() -> int:
        try:
            async with isolated_one.connect(pod, "sh", "-c", "echo up; sleep 3600") as client:
                await client.read(until="up")
                await everybody.wait()
        except aiohttp.WSServerHandshakeError as error:
            return error.status
        finally:
            arrived.release()
        return 101

    arrived, everybody = asyncio.Semaphore(0), asyncio.Event()
    attempts = [asyncio.create_task(attempt()) for _ in range(60)]
    for _ in range(40):  # those that are refused
        await arrived.acquire()
    async with isolated_one.http.get(f"{isolated_one.url}/api/v1/namespaces/team/pods") as answer:
        assert answer.status == 200
    everybody.set()
    assert sorted(await asyncio.gather(*attempts)) == [101] * 20 + [429] * 40
    await until(lambda: isolated_one.run(pod, "true"), lambda ran: ran[2]["status"] == "Success")


@pytest.mark.parametrize(
    ("query", "code", "message"),
    [
        ({"container": "zz", "command": "true"}, 400, "container zz is not valid for pod"),
        ({"stdout": "true"}, 400, "you must specify at least one command"),
        ({"command": "true"}, 400, "you must specify at least 1 of stdin, stdout, stderr"),
        (
            {"command": "true", "stdout": "1", "upgrade": "SPDY/3.1"},
            400,
            "exec, attach and portforward over WebSockets only",
        ),
        ({"command": "true", "stdout": "1", "protocol": "chat"}, 400, "WebSocket protocol v5.channel.k8s.io or v4."),
    ],
)
async def test_a_refusal_names_its_reason(isolated_one: Reached, query: dict[str, str], code: int, message: str):
    pod = await started(isolated_one.world)
    refused, said = await isolated_one.refusal(pod, **query)
    assert refused == code
    assert message in said


async def test_a_container_that_has_ended_takes_no_command(isolated_one: Reached):
    pod = await isolated_one.world.start("true")
    await isolated_one.world.finish(pod)
    refused = await isolated_one.refusal(pod, command="true", stdout="true")
    assert refused == (404, 'unable to upgrade connection: container not found ("main")')


async def test_attach_shows_what_the_container_writes_from_now_on(isolated_one: Reached):
    pod = await started(
        isolated_one.world,
        "sh",
        "-c",
        "echo before; until [ -e /marks/go ]; do sleep 0.05; done; echo after",
        volumes=[{"name": "marks", "emptyDir": {}}],
        main={"volumeMounts": [{"name": "marks", "mountPath": "/marks"}]},
    )
    await isolated_one.world.log_with(pod, "before\n")
    async with isolated_one.connect(pod) as client:
        await isolated_one.run(pod, "touch", "/marks/go")
        found = await client.read()
    assert (found[STDOUT], json.loads(found[ERROR])["status"]) == ("after\n", "Success")
