"""No process of a pod survives the end of its container or of the agent, however the agent ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.node.agent_program import NO_SUCH_MODE
from tests.needs import lack
from tests.patience import PATIENCE

PROGRAM = Path(__file__).with_name("agent_program.py")
LITTER = 5
"""Number of processes: the command, two plain children, one in a new session, one stopped."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def with_marker(marker: str) -> list[int]:
    """PIDs of the processes that carry the marker, as seen from here."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in words and PROGRAM.name.encode() not in words:
                found.append(int(entry.name))
    return found


def until_count(marker: str, least: int, most: int) -> None:
    end = time.monotonic() + PATIENCE
    while not least <= (count := len(with_marker(marker))) <= most:
        assert time.monotonic() < end, f"{count} processes, not {least} to {most}"
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Agent:
    """The agent program with the processes that it leaves behind."""

    def __init__(self, mode: str, lasting: float = 1000) -> None:
        self.marker = str(uuid.uuid4().int)  # digits, for `sleep` takes a number
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), mode, self.marker, str(lasting)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )

    def say(self, word: str) -> None:
        """Wait until the program prints `word`."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line and self.process.wait(PATIENCE) == NO_SUCH_MODE:
            lack("this mode cannot be had here: see the agent's standard error")
        assert line == word

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(params=["namespaces", "addresses"])
def agent(request: pytest.FixtureRequest) -> Iterator[Agent]:
    agent = Agent(request.param)
    try:
        agent.say("started")
        until_count(agent.marker, LITTER, LITTER + 1)
        yield agent
    finally:
        agent.end()
        until_count(agent.marker, 0, 0)


def test_nothing_survives_the_agent_that_is_killed(agent: Agent) -> None:
    agent.process.kill()
    until_count(agent.marker, 0, 0)


def test_nothing_survives_the_agent_after_ctrl_c(agent: Agent) -> None:
    """The terminal signals the whole process group; pods are not in it, so that the agent can end them in order."""
    os.killpg(agent.process.pid, signal.SIGINT)
    agent.process.wait(PATIENCE)
    assert with_marker(agent.marker) == []


def test_nothing_survives_a_container_that_is_killed(agent: Agent) -> None:
    agent.process.send_signal(signal.SIGUSR1)
    agent.say("ended")
    assert with_marker(agent.marker) == []


def test_nothing_survives_the_supervisor(agent: Agent) -> None:
    (supervisor,) = children(agent.process.pid)
    os.kill(supervisor, signal.SIGKILL)
    agent.say("ended")
    agent.say("lost")
    until_count(agent.marker, 0, 0)


def test_nothing_survives_the_init_of_a_container(agent: Agent) -> None:
    command = next(pid for pid in with_marker(agent.marker) if b"import" in Path(f"/proc/{pid}/cmdline").read_bytes())
    init = int(Path(f"/proc/{command}/stat").read_bytes().rpartition(b")")[2].split()[1])
    os.kill(init, signal.SIGKILL)
    agent.say("ended")
    until_count(agent.marker, 0, 0)


@pytest.mark.parametrize("mode", ["namespaces", "addresses"])
def test_nothing_survives_the_end_of_its_container(mode: str) -> None:
    agent = Agent(mode, lasting=0.3)
    try:
        agent.say("started")
        agent.say("ended")
        assert with_marker(agent.marker) == []
    finally:
        agent.end()
