"""Settings of the operator process at start (malloc), tested in separate processes."""

from __future__ import annotations

import asyncio
import platform
import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from trainop.runtime.process import loop_factory

FREE_BETWEEN_BLOCKS = """
import sys
from trainop.runtime.process import return_freed_memory

def resident():  # MiB
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * 4096 / 2**20

if sys.argv[1] == "set":
    assert return_freed_memory()
large = bytes(8 * 2**20)
del large  # glibc takes blocks of up to 8 MiB from the heap from now on
rest = resident()
blocks, kept = [], []
for _ in range(64):
    blocks.append(b"x" * 2**20)
    kept.append(bytes(2000))  # keeps the heap from shrinking
blocks.clear()
print(resident() - rest)
"""


def resident_after_free(how: str) -> float:
    """MiB that stay resident after 64 MiB of blocks were freed."""
    command = [sys.executable, "-c", FREE_BETWEEN_BLOCKS, how]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or sys.platform != "linux", reason="only glibc has the thresholds that are set"
)
def test_freed_blocks_go_back_to_the_system():
    assert resident_after_free("unset") > 32, (
        "glibc keeps freed blocks by default; otherwise the setting would be pointless"
    )
    assert resident_after_free("set") < 8


async def write_to_a_closed_connection() -> RuntimeError:
    """What uvloop raises then."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    class Client(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            ended.set()

    async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(nothing, "127.0.0.1", 0) as server:
        transport, _ = await loop.create_connection(Client, *server.sockets[0].getsockname())
        transport.abort()
        await ended.wait()
        with pytest.raises(RuntimeError) as raised:
            transport.write(b"x")
        return raised.value


def test_a_closed_connection_is_no_error_of_the_loop():
    pytest.importorskip("uvloop")
    with capture_logs() as logs, asyncio.Runner(loop_factory=loop_factory()) as runner:
        error = runner.run(write_to_a_closed_connection())
        runner.get_loop().call_exception_handler({"message": "Fatal error on SSL protocol", "exception": error})
    assert [entry["log_level"] for entry in logs] == ["debug"]


def test_an_error_that_no_task_receives_is_one_entry():
    def fail() -> None:
        raise ValueError("wrong")

    async def call() -> None:
        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(0)

    with capture_logs() as logs, asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(call())
    (entry,) = logs
    assert entry["event"] == "error in the event loop"
    assert isinstance(entry["exc_info"], ValueError)
    assert " at 0x" not in entry["detail"]
