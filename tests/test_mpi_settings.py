"""The flags of `trainop mpi-operator`."""

from __future__ import annotations

import asyncio

import pytest
from click.testing import CliRunner

from tests.controllers.mpi import only_version
from tests.controllers.test_shell_operator import stage
from tests.runtime.virtual_time import virtual_time
from trainop.cli import cli
from trainop.engine.gang_scheduler import VOLCANO
from trainop.errors import StartError, UsageError
from trainop.kinds.mpi.crd import mpi_crd
from trainop.programs.mpi_operator import read_mpi_settings
from trainop.programs.mpi_versions import MpiVersionWatch, adapt_to_crds
from trainop.programs.settings import Settings
from trainop.runtime.objects.metadata import CUSTOM_RESOURCE_DEFINITIONS


def read(*args: str, **environ: str) -> Settings:
    return read_mpi_settings(args, environ)[0]


@pytest.mark.case("mpi-v2beta1-40", "ad")
def test_flags_of_upstream():
    found = read(
        "-alsologtostderr", "--lock-namespace=x", "--gang-scheduling=volcano", "--cluster-domain=cluster.local"
    )
    assert (found.leader_elect, found.leader_election_id, found.leader_election_namespace) == (
        True,
        "mpi-operator",
        "x",
    )
    assert (found.leader_lease_duration, found.leader_renew_deadline, found.leader_retry_period) == (15, 3 + 5, 3)
    assert found.options.gang is VOLCANO
    assert found.options.mpi_cluster_domain == "cluster.local"
    assert found.schemes == ("MPIJob",)
    assert found.options.termination_message_policy == "FallbackToLogsOnError"
    assert read("--termination-message-policy=File").options.termination_message_policy == "File"
    assert (found.health_probe_bind_address, found.metrics_bind_address) == (":8080", "0")
    assert read("--monitoring-port", "9090").metrics_bind_address == ":9090"
    assert (read().controller_threads, read("-threadiness=5").controller_threads) == (2, 5)


def test_environment():
    assert read("--kubeConfig=mine", KUBECONFIG="theirs").kubeconfig == "theirs"
    assert read("--kubeConfig=mine").kubeconfig == "mine"
    assert read(KUBEFLOW_NAMESPACE="team").namespace == "team"
    assert read("--namespace=other", KUBEFLOW_NAMESPACE="team").namespace == "other"


def test_verbosity():
    assert [read(f"-v={level}").logs.level for level in (0, 3, 4)] == ["info", "info", "debug"]


@virtual_time
async def test_the_crd_must_be_there() -> None:
    async with stage(crds=False, run=False) as here:
        with pytest.raises(StartError, match="mpijobs") as caught:
            await adapt_to_crds(read(), here.client)
        assert caught.value.exit_code == 1
        assert await adapt_to_crds(Settings(), here.client) == Settings()
        await here.client.create(CUSTOM_RESOURCE_DEFINITIONS, mpi_crd())
        assert (await adapt_to_crds(read(), here.client)).options.mpi_version == "v1"


@virtual_time
async def test_the_crd_of_mpi_operator_has_one_version() -> None:
    async with stage(crds=False, run=False) as here:
        await here.client.create(CUSTOM_RESOURCE_DEFINITIONS, only_version("v2beta1"))
        assert (await adapt_to_crds(read(), here.client)).options.mpi_version == "v2beta1"


@virtual_time
async def test_a_replaced_crd_restarts_the_process() -> None:
    """From the CRD of mpi-operator, v2beta1, to that of training-operator, v1."""
    async with stage(crds=False, run=False) as here:
        crd = await here.client.create(CUSTOM_RESOURCE_DEFINITIONS, only_version("v2beta1"))
        settings = await adapt_to_crds(read(), here.client)
        stops: list[float] = []
        watching = MpiVersionWatch(settings, here.client, here.clock, lambda: stops.append(here.clock.monotonic()))
        task = asyncio.create_task(watching.run())
        await asyncio.sleep(200)
        assert stops == []
        await here.client.delete(CUSTOM_RESOURCE_DEFINITIONS, crd["metadata"]["name"])
        await asyncio.sleep(200)
        assert stops == []  # none is served: there is nothing to watch instead
        await here.client.create(CUSTOM_RESOURCE_DEFINITIONS, only_version("v1"))
        await asyncio.sleep(70)
        assert len(stops) == 1
        task.cancel()


def test_a_master_is_refused():
    with pytest.raises(UsageError, match="use --kubeConfig"):
        read("--master=https://example.com")


def test_commands():
    version = CliRunner().invoke(cli, ["mpi-operator", "--version"])
    assert version.exit_code == 0
    assert version.output.startswith("API Version: v2\nVersion: ")
    assert len(version.output.splitlines()) == 6
    unknown = CliRunner().invoke(cli, ["mpi-operator", "--no-such-flag"])
    assert (unknown.exit_code, "flag provided but not defined: -no-such-flag" in unknown.output) == (2, True)
