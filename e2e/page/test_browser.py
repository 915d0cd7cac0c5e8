"""The page in a real browser behind a real oauth2-proxy: what people see when their session ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from e2e.page.provider import Provider, User
from tests.server.kubelet import add_pod, kubelet_of
from tests.server.page import Team
from tests.ui.chromium import Tab, chromium, find

LIFETIME = 30.0


async def log_in(tab: Tab) -> None:
    await tab.wait_for("document.title === 'log in'")
    await tab.evaluate("document.querySelector('button[value=alice]').click()")
    await tab.wait_for("document.querySelector('#link').textContent === 'live'")


async def test_whose_session_has_ended_reads_it_and_is_back_where_they_were_after_the_login(
    start_proxy: Callable[..., str], provider: Provider, teams: tuple[Team, Team], tmp_path: Path
) -> None:
    find()
    provider.users["alice"] = User("alice@example.com", lifetime=LIFETIME)
    site, team = start_proxy("--cookie-refresh=5s"), teams[0]
    async with (
        kubelet_of(team.world, tmp_path) as kubelet,
        chromium(tmp_path / "profile") as browser,
        browser.tab() as tab,
    ):
        pod = add_pod(team.world, "train")
        await tab.call("Security.setIgnoreCertificateErrors", ignore=True)
        await tab.open(site)
        await log_in(tab)
        await tab.wait_for("document.querySelector('#notes').textContent.includes('you may not list the jobs of all')")
        await tab.evaluate(f"location.hash = '#ns={team.name}'")
        await tab.wait_for(
            f"document.querySelector('#title').textContent === 'alice@example.com, namespace {team.name}'"
        )
        await kubelet.say(pod, "a line before")
        await tab.wait_for("document.querySelector('#lines').textContent.includes('a line before')")

        provider.users["alice"].knows = False
        await tab.wait_for("document.querySelector('#link').textContent.includes('not logged in any more')", 120.0)
        assert not await tab.evaluate("document.querySelector('#login').hidden")
        assert "a line before" in await tab.text("#lines"), "what was read stays, and nobody takes it for live"

        provider.users["alice"] = User("alice@example.com")
        await tab.evaluate("document.querySelector('#login').click()")
        await log_in(tab)
        assert f"job={team.name}" in await tab.evaluate("decodeURIComponent(location.hash)")
        await kubelet.say(pod, "a line after")
        await tab.wait_for("document.querySelector('#lines').textContent.includes('a line after')")
