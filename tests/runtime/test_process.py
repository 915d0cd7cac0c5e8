"""Settings of the operator process at start (malloc), tested in separate processes."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FREE_BETWEEN_BLOCKS = """
import sys
from trainop.runtime import return_freed_memory

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
