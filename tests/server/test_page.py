"""The page behind a proxy on a real API server: three users with the shipped roles, and a process whose kubeconfig has
all rights, which it must not use."""

from __future__ import annotations

from e2e.cluster.controlplane import ControlPlane
from tests.server.page import Team, next_event, opened, until_allowed
from tests.server.world import CORE


async def test_each_user_sees_what_their_own_rights_allow(control_plane: ControlPlane, page_url: str, alone: None):
    ours, theirs = Team(control_plane), Team(control_plane)
    ours.grant()
    theirs.grant()
    async with opened(page_url) as page:
        for team, other in ((ours, theirs), (theirs, ours)):
            jobs = await until_allowed(page, team, team.name)
            assert [(each["namespace"], each["name"]) for each in jobs["jobs"]] == [(team.name, "train")]
            assert jobs["title"] == f"system:serviceaccount:{team.name}:user, namespace {team.name}"

            for namespace in ("", other.name):  # what is not theirs is refused by the API server, and named
                query = {"namespace": namespace} if namespace else {}
                jobs, _ = await page.first("jobs", team.token, **query)
                assert jobs["jobs"] == []
                (note,) = jobs["notes"]
                where = f"in namespace {namespace}" if namespace else "of all namespaces"
                assert note.startswith("you may not list"), note
                assert where in note, note
                assert f'User "system:serviceaccount:{team.name}:user" cannot list resource' in note, note

            status, found = await page.read("yaml", team.token, job=team.job)
            assert (status, f"namespace: {team.name}" in found["text"]) == (200, True)
            status, found = await page.read("why", team.token, job=team.job, namespace=team.name)
            assert status == 200
            for path, method in (("yaml", "GET"), ("why", "GET"), ("stacks", "POST")):
                status, found = await page.read(path, team.token, method, job=other.job)
                assert status == 502
                assert "may not be read" in found["error"]


async def test_the_shipped_cluster_role_has_what_the_page_reads(
    control_plane: ControlPlane, page_url: str, alone: None
):
    team, other = Team(control_plane), Team(control_plane)
    team.grant_everywhere()
    async with opened(page_url) as page:
        jobs = await until_allowed(page, team, "")
        assert {team.name, other.name} <= {each["namespace"] for each in jobs["jobs"]}
        status, found = await page.read("why", team.token, job=other.job)
        assert (status, found["unread"]) == (200, [])


async def test_when_an_account_is_gone_its_stream_ends_and_nothing_more_is_shown(
    control_plane: ControlPlane, page_url: str, alone: None
):
    ours, theirs = Team(control_plane), Team(control_plane)
    for team in (ours, theirs):
        team.grant()
    async with opened(page_url) as page:
        for team in (ours, theirs):
            await until_allowed(page, team, team.name)
        async with page.ask("events", ours.token, namespace=ours.name) as stream:
            await next_event(stream, "jobs")
            ours.world.ask("DELETE", f"{CORE}/serviceaccounts/user")  # the API server remembers tokens for 10 s
            await next_event(stream, "login")
            assert await stream.content.read() == b""
        status, found = await page.read("yaml", ours.token, job=ours.job)
        assert status == 401
        assert "log in again" in found["error"]
        assert (await page.read("yaml", theirs.token, job=theirs.job))[0] == 200
        assert (await page.read("yaml", "eyJ.not.mine", job=theirs.job))[0] == 401
