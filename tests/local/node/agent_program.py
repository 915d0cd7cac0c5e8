"""Starts one container that leaves processes behind in every known way, then waits to be ended.

    python agent_program.py MODE MARKER SECONDS

The marker is an argument of every process, so that the test finds those that survive.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from trainop.local.node.sandbox.sandbox import Command, ContainerRuntime, NetworkMode, SandboxError

NO_SUCH_MODE = 3
"""Exit code that tells a machine on which the mode cannot be had from a mistake."""

LITTER = """
import os, subprocess, sys, time
marker = sys.argv[1]
def leave(detach):
    if os.fork() == 0:
        if detach:
            os.setsid()
            if os.fork():
                os._exit(0)
            os.closerange(0, 3)
        os.execvp("sleep", ["sleep", f"1000.{marker}"])
leave(False)
leave(True)
subprocess.Popen(["sh", "-c", "trap '' TERM INT HUP; while :; do sleep 1; done", marker], start_new_session=True)
stopped = subprocess.Popen(["sleep", f"1000.{marker}"])
stopped.send_signal(19)
time.sleep(float(sys.argv[2]))
"""


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def main(mode: NetworkMode, marker: str, lasting: str) -> None:
    runtime = await ContainerRuntime.start(mode)
    await runtime.run_pod_sandbox("pod", "pod", "10.244.0.2")
    command = Command([sys.executable, "-c", LITTER, marker, lasting], dict(os.environ), "/")
    null = os.open(os.devnull, os.O_RDWR)
    process = await runtime.start_container("pod", command, null, null)
    await process.started
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, process.kill)
    say("started")
    try:
        await process.ended
        say("ended")
        await runtime.lost
        say("lost")
    finally:
        await runtime.close()


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))  # type: ignore[arg-type]  # three words
    except SandboxError:
        sys.exit(NO_SUCH_MODE)
    except KeyboardInterrupt:
        sys.exit(130)
