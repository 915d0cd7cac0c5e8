"""Runs a command in a container, over a WebSocket as kubectl does (`v4.channel.k8s.io`)."""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass
from urllib.parse import urlencode

import aiohttp

from trainop.runtime import PODS, ApiError, ConfigError
from trainop.runtime.lowlevel import ClusterConfig, api_error, read_material, tls_context

PROTOCOL = "v4.channel.k8s.io"
MAX_OUTPUT = 4 * 1024 * 1024
"""Bytes of output that are kept."""

_STDOUT, _STDERR, _ERROR = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Output:
    """What a command printed, and its exit code; None if it did not end in time."""

    stdout: bytes
    stderr: bytes
    code: int | None


async def run_in_pod(
    config: ClusterConfig, namespace: str, pod: str, container: str, command: list[str], *, within: float
) -> Output:
    """Runs the command without stdin. `within` in seconds limits all of it. Raises `ApiError` if the API server
    refuses, `ConnectionError` if it cannot be reached."""
    query = [("command", word) for word in command]
    query += [("container", container), ("stdout", "true"), ("stderr", "true")]
    url = f"{config.server.rstrip('/')}{PODS.path(namespace, pod, 'exec')}?{urlencode(query)}"
    output: dict[int, bytearray] = {_STDOUT: bytearray(), _STDERR: bytearray(), _ERROR: bytearray()}
    headers, context = await _authenticate(config)
    try:
        async with (
            asyncio.timeout(within),
            aiohttp.ClientSession() as session,
            session.ws_connect(
                url,
                protocols=[PROTOCOL],
                headers=headers,
                ssl=context,
                server_hostname=config.tls_server_name,
                proxy=config.proxy,
                max_msg_size=MAX_OUTPUT,
                compress=0,
                timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
            ) as socket,
        ):
            await _receive(socket, output)
    except TimeoutError:
        return Output(bytes(output[_STDOUT]), bytes(output[_STDERR]), None)
    except aiohttp.WSServerHandshakeError as error:
        raise _refusal(error) from error
    except aiohttp.ClientError as error:
        raise ConnectionError(f"exec in pod {pod}: {error}") from error
    return Output(bytes(output[_STDOUT]), bytes(output[_STDERR]), _exit_code(bytes(output[_ERROR])))


async def _authenticate(config: ClusterConfig) -> tuple[dict[str, str], ssl.SSLContext | bool]:
    """Headers and TLS context of a request. Raises `ConnectionError` if certificates cannot be read."""
    auth = await config.credentials.auth_headers() if config.credentials else None
    headers = {**dict(config.headers), **(auth.headers if auth else {})}
    if not config.server.startswith("https:"):
        return headers, True
    try:
        return headers, tls_context(config, read_material(config, auth))
    except (ConfigError, OSError) as error:
        raise ConnectionError(str(error)) from error


def _refusal(error: aiohttp.WSServerHandshakeError) -> ApiError:
    """The body of the answer is lost; its status says enough."""
    message = {
        403: "you may not run commands in this pod: the right to get and create pods/exec is missing",
        404: "the pod or its container does not exist any more",
    }.get(error.status, f"the API server answered {error.status} to exec: {error.message}")
    return api_error(error.status, json.dumps({"kind": "Status", "message": message, "code": error.status}).encode())


async def _receive(socket: aiohttp.ClientWebSocketResponse, output: dict[int, bytearray]) -> None:
    """Reads until the peer closes. The first byte of a message is its channel."""
    async for message in socket:
        if message.type is aiohttp.WSMsgType.BINARY and message.data:
            kept = output.get(message.data[0])
            if kept is not None and len(kept) < MAX_OUTPUT:
                kept += message.data[1:]


def _exit_code(status: bytes) -> int:
    """From the `Status` on the channel of errors."""
    try:
        answer = json.loads(status or b"{}")
    except ValueError:
        return 1
    if answer.get("status") == "Success":
        return 0
    causes = (answer.get("details") or {}).get("causes") or ()
    found = next((each.get("message") for each in causes if each.get("reason") == "ExitCode"), "1")
    return int(found) if str(found).isdecimal() else 1
