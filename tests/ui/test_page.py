"""The page in a real browser."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.kept.test_runs import Home
from tests.patience import PATIENCE
from tests.ui.chromium import Tab, chromium, find

FAILS = r"""
import os, sys, time
rank = os.environ['RANK']
for n in range(300):
    print('step', n, flush=True)
print('<img src=x onerror="document.title=\'owned\'"><script>document.title="owned"</script>', flush=True)
print('\x1b[31mred\x1b[0m and \u202edeceptive', flush=True)
sys.stdout.buffer.write(b'\xff\xfe\x00\x01 binary\n'); sys.stdout.buffer.flush()
print('x' * 200_000, end='', flush=True)
if rank == '1':
    print('\nValueError: the needle', flush=True)
    time.sleep(1); sys.exit(3)
time.sleep(600)
"""
TICKS = "import time\nfor n in range(10_000):\n    print('tick', n, flush=True)\n    time.sleep(0.05)\n"


MANY = """
import time
time.sleep(12)
began = time.monotonic()
for n in range(1000):
    print('line', n, 'loss 0.123456 of this step', flush=True)
    time.sleep(max(0, began + n / 100 - time.monotonic()))
time.sleep(3)
"""
REPORTS = """
import time
from trainop.progress import report
for n in range(10_000):
    print('step', n, flush=True)
    report(n, 10_000, loss=1 / (n + 1), force=True)
    time.sleep(1)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with a run that has failed."""
    find()
    made = Home(tmp_path_factory.mktemp("home"))
    made.trainop("run", made.script(FAILS), "--nproc=4", code=1)
    return made


@pytest.fixture(scope="module")
def url(home: Home) -> Iterator[str]:
    """The page about that run."""
    with subprocess.Popen(
        [sys.executable, "-m", "trainop", "ui", "train-1"],
        env=home.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()
        process.wait(PATIENCE)


@asynccontextmanager
async def opened(
    url: str, folder: Path, width: int = 1600, height: int = 1000, *, dark: bool = False
) -> AsyncIterator[Tab]:
    async with chromium(folder / "profile") as browser, browser.tab() as tab:
        await tab.open(url, width, height, dark=dark)
        await tab.wait_for("document.querySelector('#name').textContent !== ''")
        await tab.wait_for("parseInt(document.querySelector('#count').textContent) > 0")
        yield tab
        assert tab.problems == [], "errors, or what the policy has refused"


async def test_a_run_that_has_failed_is_shown_whole(url: str, tmp_path: Path):
    async with opened(url, tmp_path) as tab:
        await tab.wait_for("document.querySelector('#why').textContent.includes('failed')")
        assert await tab.text("#name") == "PyTorchJob train"
        assert (await tab.text("#state")).startswith("Failed, ")
        assert await tab.evaluate("document.querySelectorAll('#replicas button').length") == 4
        assert await tab.text("#replicas .first") == "worker-0"
        assert "failed: " in await tab.text("#timeline")
        assert "Failed=True" in await tab.text("#conditions")
        assert await tab.evaluate("document.querySelectorAll('#events tr').length") > 0
        assert "First failure: Worker 0" in await tab.text("#why")
        await tab.evaluate("document.querySelector('#ask-yaml').click()")
        await tab.wait_for("document.querySelector('#yaml').textContent.includes('kind: PyTorchJob')")
        await tab.evaluate("document.querySelector('#ask-stacks').click()")
        await tab.wait_for("document.querySelector('#stacks').textContent === 'The processes have ended.'")


async def test_hostile_output_is_text_and_nothing_else(url: str, tmp_path: Path):
    async with opened(url, tmp_path) as tab:
        await tab.evaluate(
            "const s = document.querySelector('#search'); s.value = 'onerror'; s.dispatchEvent(new Event('input'))"
        )
        await tab.wait_for("document.querySelector('#lines .l').textContent.includes('onerror')")
        assert "<img src=x onerror" in await tab.text("#lines .l")
        assert await tab.evaluate("document.querySelectorAll('img').length + document.scripts.length") == 1
        await tab.evaluate(
            "const t = document.querySelector('#search'); t.value = 'deceptive'; t.dispatchEvent(new Event('input'))"
        )
        await tab.wait_for("document.querySelector('#lines .l')?.textContent.endsWith('red and deceptive')")
        assert "owned" not in await tab.evaluate("document.title")


async def test_keys_search_and_find_the_first_failure(url: str, tmp_path: Path):
    async with opened(url, tmp_path) as tab:
        await tab.wait_for("!document.querySelector('#first').disabled")
        await tab.press("/")
        assert await tab.evaluate("document.activeElement.id") == "search"
        for key in "needle":
            await tab.press(key)
        await tab.wait_for("document.querySelector('#count').textContent.includes('1 found')")
        await tab.wait_for("document.querySelector('#lines mark').textContent === 'needle'")
        await tab.press("Escape")
        await tab.press("f")
        await tab.wait_for("document.activeElement.id === 'logs'")
        seen = """[...document.querySelectorAll('#lines .l.f')].some((l) => l.textContent.includes('the needle') &&
            l.getBoundingClientRect().bottom <= document.querySelector('#logs').getBoundingClientRect().bottom + 1)"""
        await tab.wait_for(seen)
        await tab.press("Escape")
        await tab.wait_for("document.querySelector('#job').hidden")
        await tab.press("j")
        await tab.wait_for("!document.querySelector('#job').hidden")


@pytest.mark.parametrize("width", [360, 1600])
@pytest.mark.parametrize("dark", [False, True])
async def test_nothing_is_wider_than_the_window(url: str, tmp_path: Path, width: int, dark: bool):
    async with opened(url, tmp_path, width, 740, dark=dark) as tab:
        await tab.wait_for("document.querySelector('#why').textContent.includes('failed')")
        assert await tab.evaluate("document.documentElement.scrollWidth") <= width
        background = await tab.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert background == ("rgb(15, 18, 22)" if dark else "rgb(255, 255, 255)")


async def test_without_the_token_the_page_has_nothing(url: str, home: Home, tmp_path: Path):
    async with chromium(tmp_path / "profile") as browser, browser.tab() as tab:
        await tab.open(url.partition("#")[0] + "#token=wrong")
        await tab.wait_for("document.querySelector('#link').textContent.includes('token')")
        assert "train" not in (await tab.text("main"))


async def test_a_run_that_lives_is_followed_to_its_end_and_beyond(home: Home, tmp_path: Path):
    """The log grows; after the end of the run, its folder is read; no line comes twice."""
    home.trainop("run", "-d", home.script(TICKS, "ticks.py"), "--nproc=2")
    pipe = subprocess.PIPE
    process = subprocess.Popen(  # noqa: ASYNC220  # it returns at once
        [sys.executable, "-m", "trainop", "ui", "ticks-1"], env=home.environment, stdout=pipe, stderr=-3, text=True
    )
    assert process.stdout is not None
    try:
        async with opened(process.stdout.readline().strip(), tmp_path) as tab:
            await tab.wait_for("document.querySelector('#state').textContent.startsWith('Running')")
            await tab.wait_for("parseInt(document.querySelector('#count').textContent) > 60")
            await asyncio.to_thread(home.trainop, "stop", "--now", "ticks-1")
            await tab.wait_for("document.querySelectorAll('#replicas button').length === 2")
            lines = "[...document.querySelectorAll('#lines .l')].map((l) => l.textContent.slice(13))"
            found = [each for each in await tab.evaluate(lines) if "tick" in each]
            assert len(found) == len(set(found)) > 10
            tab.problems.clear()  # the reload of a stream that has ended
    finally:
        process.terminate()
        process.wait(PATIENCE)
        process.stdout.close()


async def test_a_run_serves_its_own_page_as_long_as_it_lasts(home: Home, tmp_path: Path):
    """Stacks are read of its living processes, and progress is drawn as it is reported."""
    script = home.script(REPORTS, "reports.py")
    process = subprocess.Popen(  # noqa: ASYNC220  # it returns at once
        home.command("run", "--ui", "--progress", script, "--nproc=2"),
        cwd=home.path,
        env=home.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        address = process.stderr.readline().removeprefix("trainop: page: ").strip()
        async with opened(address, tmp_path) as tab:
            await tab.wait_for("document.querySelector('#state').textContent.startsWith('Running')")
            await tab.wait_for("document.querySelectorAll('#plots polyline').length >= 3")
            assert "loss" in await tab.text("#plots")
            await tab.evaluate("document.querySelector('#ask-stacks').click()")
            await tab.wait_for("document.querySelector('#stacks').textContent.length > 20")
            process.terminate()
            await tab.wait_for("document.querySelector('#link').className === 'lost'")
            tab.problems.clear()  # connections are refused
        assert process.wait(PATIENCE) == 143
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


@pytest.mark.slow
async def test_64_replicas_of_100_lines_a_second_lose_no_line(home: Home, tmp_path: Path):
    """For ten seconds, with all 64 replicas on the screen."""
    home.trainop("run", "-d", home.script(MANY, "many.py"), "--nproc=64")
    process = subprocess.Popen(  # noqa: ASYNC220  # it returns at once
        [sys.executable, "-m", "trainop", "ui", "many-1"], env=home.environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        async with opened(process.stdout.readline().strip(), tmp_path) as tab:
            await tab.wait_for("document.querySelector('#count').textContent === '64,000 lines'", PATIENCE)
            assert await tab.evaluate("document.querySelectorAll('#replicas button').length") == 64
    finally:
        process.terminate()
        process.wait(PATIENCE)
        process.stdout.close()
