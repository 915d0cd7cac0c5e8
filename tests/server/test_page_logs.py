"""Logs on the page come through a real kube-apiserver, which asks a kubelet of the test: who sees which lines, and what
happens to those who lose the right while they look."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from e2e.cluster.controlplane import ControlPlane
from tests.patience import PATIENCE
from tests.server.kubelet import Kubelet, add_pod, kubelet_of
from tests.server.page import Page, Team, lines_until, next_event, opened, role_of, until_allowed

LOGS = [{"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}]
ALL_BUT_LOGS = [each for each in role_of("page-namespaced", "Role")["rules"] if each != LOGS[0]]


class Stage(NamedTuple):
    """Two teams with a running job each."""

    page: Page
    kubelet: Kubelet
    teams: tuple[Team, Team]
    pods: list[str]


@asynccontextmanager
async def stage(plane: ControlPlane, page_url: str, folder: Path) -> AsyncIterator[Stage]:
    teams = Team(plane), Team(plane)
    async with kubelet_of(teams[0].world, folder) as kubelet, opened(page_url) as page:
        for team in teams:
            team.grant()
        yield Stage(page, kubelet, teams, [add_pod(team.world, "train") for team in teams])


def test_the_role_without_logs_lacks_nothing_else():
    assert len(ALL_BUT_LOGS) == len(role_of("page-namespaced", "Role")["rules"]) - 1


async def test_each_user_has_the_lines_of_their_own_pods_and_resumes_only_their_own_log(
    control_plane: ControlPlane, page_url: str, tmp_path: Path, alone: None
):
    async with stage(control_plane, page_url, tmp_path) as (page, kubelet, (ours, theirs), (our_pod, their_pod)):
        await kubelet.say(our_pod, "ours 1", "ours 2")
        await kubelet.say(their_pod, "theirs 1", "theirs 2")
        for team in (ours, theirs):
            await until_allowed(page, team, team.name)
        async with page.ask("events", ours.token, job=ours.job, namespace=ours.name) as stream:
            lines, last = await lines_until(stream, "ours 2")
            assert lines == ["ours 1", "ours 2"]
            await kubelet.say(our_pod, "ours 3")
            assert (await lines_until(stream, "ours 3"))[0] == ["ours 3"], "a line gets to the page while it is open"

        for resumed in (last, "", last.rpartition("-")[0] + "-0"):  # the other team, with the number of our log
            async with page.ask("events", theirs.token, last=resumed, job=theirs.job, namespace=theirs.name) as stream:
                assert (await lines_until(stream, "theirs 2"))[0] == ["theirs 1", "theirs 2"]
            async with page.ask("events", theirs.token, last=resumed, job=ours.job, namespace=ours.name) as stream:
                job, _ = await next_event(stream, "job")
                assert "may not be read" in job["error"]
                lines, _ = await lines_until(stream, "may not be read")
                assert len(lines) == 1, "why there is no log, and nothing else"

        async with page.ask("events", ours.token, last=last, job=ours.job, namespace=ours.name) as stream:
            begin, _ = await next_event(stream, "begin")
            assert begin == [last.rpartition("-")[0], 2]
            assert (await lines_until(stream, "ours 3"))[0] == ["ours 3"], "their own log goes on where it was"


async def test_a_log_goes_on_once_its_kubelet_has_restarted(
    control_plane: ControlPlane, page_url: str, tmp_path: Path, alone: None
):
    """kube-apiserver ends the log as if the container had ended."""
    async with stage(control_plane, page_url, tmp_path) as (page, kubelet, (team, _), (pod, _)):
        await kubelet.say(pod, "one", "two")
        await until_allowed(page, team, team.name)
        async with page.ask("events", team.token, job=team.job, namespace=team.name) as stream:
            await lines_until(stream, "two")
            for text in ("three", "four"):
                await kubelet.restart()
                await kubelet.say(pod, text)
                assert (await lines_until(stream, text))[0] == [text], "the next line, and none twice"


async def test_who_may_see_the_job_and_not_its_logs_sees_no_line(
    control_plane: ControlPlane, page_url: str, tmp_path: Path, alone: None
):
    async with stage(control_plane, page_url, tmp_path) as (page, kubelet, (team, _), (pod, _)):
        await kubelet.say(pod, "a secret")
        await until_allowed(page, team, team.name)
        async with page.ask("events", team.token, job=team.job, namespace=team.name) as stream:
            _, last = await lines_until(stream, "a secret")
        token, subject = team.account("colleague")
        team.allow(subject, ALL_BUT_LOGS, "colleague")
        await jobs_are_listed(page, token, team.name)
        for resumed in ("", last, last.rpartition("-")[0] + "-0"):
            async with page.ask("events", token, last=resumed, job=team.job, namespace=team.name) as stream:
                begin, _ = await next_event(stream, "begin")
                assert begin[0] != last.rpartition("-")[0]
                assert begin[1] == 0
                lines, _ = await lines_until(stream, "pods/log")
                assert [each for each in lines if "pods/log" not in each] == []
                assert (await next_event(stream, "job"))[0]["name"] == "train"
        assert kubelet.following == [pod], "the first user's log, for a moment longer, and no other"


async def jobs_are_listed(page: Page, token: str, namespace: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await page.first("jobs", token, namespace=namespace))[0]["notes"] != []:  # noqa: ASYNC110  # the server is another process
            await asyncio.sleep(0.2)


async def test_who_loses_the_role_has_no_further_line(
    control_plane: ControlPlane, page_url: str, tmp_path: Path, alone: None
):
    async with stage(control_plane, page_url, tmp_path) as (page, kubelet, (ours, theirs), (our_pod, their_pod)):
        for team in (ours, theirs):
            await until_allowed(page, team, team.name)
        async with (
            page.ask("events", ours.token, job=ours.job, namespace=ours.name) as mine,
            page.ask("events", theirs.token, job=theirs.job, namespace=theirs.name) as others,
        ):
            await kubelet.say(our_pod, "before")
            await lines_until(mine, "before")
            await kubelet.say(their_pod, "before")
            await lines_until(others, "before")
            ours.withdraw()
            lines, _ = await lines_until(mine, "the logs cannot be read")
            assert "before" not in lines
            async with asyncio.timeout(PATIENCE):
                while our_pod in kubelet.following:  # noqa: ASYNC110  # the page is another process
                    await asyncio.sleep(0.05)
            await kubelet.say(our_pod, "a secret")
            async with page.ask("events", ours.token, job=ours.job, namespace=ours.name) as another:
                while "error" not in (job := (await next_event(another, "job"))[0]):
                    pass
                assert "may not be read" in job["error"]
            ours.grant_again()
            lines, _ = await lines_until(mine, "a secret")
            assert lines == ["a secret"], "once the right is back, the log goes on, and no line comes twice"
            await kubelet.say(their_pod, "after")
            assert (await lines_until(others, "after"))[0] == ["after"]


async def test_who_loses_only_the_right_to_logs_keeps_the_one_that_is_open(
    control_plane: ControlPlane, page_url: str, tmp_path: Path, alone: None
):
    """As with `kubectl logs -f`: the API server asks for the right when a log is opened."""
    async with stage(control_plane, page_url, tmp_path) as (page, kubelet, (team, _), (pod, _)):
        token, subject = team.account("colleague")
        team.allow(subject, ALL_BUT_LOGS, "colleague")
        team.allow(subject, LOGS, "logs")
        await jobs_are_listed(page, token, team.name)
        async with page.ask("events", token, job=team.job, namespace=team.name) as stream:
            await kubelet.say(pod, "before")
            await lines_until(stream, "before")
            team.withdraw("logs")
            await refused_logs(team, subject)
            await kubelet.say(pod, "after")
            assert (await lines_until(stream, "after"))[0] == ["after"]


async def refused_logs(team: Team, subject: Any) -> None:
    """Waits until the API server refuses the user logs."""
    wanted = {"namespace": team.name, "verb": "get", "resource": "pods", "subresource": "log"}
    user = f"system:serviceaccount:{team.name}:{subject['name']}"
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": wanted},
    }
    async with asyncio.timeout(PATIENCE):
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        while team.world.ask("POST", path, review)["status"]["allowed"]:  # noqa: ASYNC110  # the server is another process
            await asyncio.sleep(0.05)
