"""Hostile clients against every port of every program: others are served, memory is bounded, and nothing is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.hostile.clients import CLIENTS
from tests.hostile.programs import ENDING, PROGRAMS, Backstage, Running, Server, ask, running
from tests.patience import PATIENCE, crowding
from trainop.cli import LAZY, cli

WITHIN = 10.0
"""Seconds for the answer to a well-behaved client on an idle machine, most of which the clients of this process take
from it: as long as a server waits for the head of a request."""
MEMORY = 160 * 2**20
"""Bytes by which the memory of a program may grow."""
OTHERS = 16
"""Descriptors that a program may have opened meanwhile for its own requests."""
BESIDE = 20
"""Connections beyond the limit of a server."""
PORTS = [(program, server) for program, found in PROGRAMS.items() for server in found.servers]
FIRST = {(server.name, server.tls): program for program, server in reversed(PORTS)}
"""A server -> the first program that has it. The same server of another program is tested with the slow tests, and so
are metrics, which have the same listener as probes."""


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("api") / "kubeconfig"
    with Backstage(path):
        yield path


@pytest.fixture(scope="module")
def started(
    request: pytest.FixtureRequest, kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """One program, for all tests about it."""
    with running(PROGRAMS[request.param], kubeconfig, tmp_path_factory.mktemp("program")) as found:
        yield found


def test_every_command_is_started_or_ends_by_itself():
    assert {*cli.commands, *LAZY} == {*(program.command for program in PROGRAMS.values()), *ENDING}


@pytest.mark.parametrize(("started", "program"), [(name, name) for name in PROGRAMS], indirect=["started"])
def test_a_program_listens_on_no_port_that_is_not_in_the_table(started: Running, program: str):
    named = started.named()
    assert started.listening() == set(named), "every port is that of a server with the shared listener"
    assert sorted(named.values()) == sorted(server.name for server in PROGRAMS[program].servers)


def cases() -> Iterator[ParameterSet]:
    for program, server in PORTS:
        marks = () if FIRST[server.name, server.tls] == program and server.name != "metrics" else (pytest.mark.slow,)
        for client in CLIENTS:
            name = f"{program}-{server.name}-{client}".replace(" ", "-")
            yield pytest.param(program, server, client, id=name, marks=marks)


@pytest.mark.parametrize(("started", "server", "client"), tuple(cases()), indirect=["started"])
async def test_others_are_served(started: Running, server: Server, client: str):
    port = started.ports[server.name]
    before, said = started.descriptors(), len(started.text)
    resident = started.reset_peak()
    async with CLIENTS[client](server, port, server.connections + BESIDE):
        for _ in range(3):
            began = time.monotonic()
            answer = await ask(server, port, started.token, WITHIN * crowding())
            assert server.wanted in answer, (time.monotonic() - began, answer)
        grown = started.peak() - resident
    assert grown < MEMORY, f"{grown / 2**20:.0f} MiB"
    async with asyncio.timeout(PATIENCE * crowding()):
        while started.connections(port) or started.descriptors() > before + OTHERS:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.05)
    assert "Traceback" not in started.text[said:]
