"""`trainop run` with DIJobs: the examples of their page, and a program that changes its own size through di-server."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import lack
from tests.run.test_run import run

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "kinds" / "dijob.md"
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
EXAMPLE = "examples/dijob/cartpole.yaml"
NOTE = "di-server needs network mode `namespaces`"
STEP = re.compile(r"coordinator step +(\d+) collectors (\d+) return ([\d.]+)")
SAID = [
    r"^coordinator +hello-coordinator listens on 22273$",
    r"^coordinator +ask di-server\.di-system:8080$",
]


@pytest.mark.parametrize(("example", "said"), list(zip(EXAMPLES, SAID, strict=True)), ids=["serial", "complete"])
async def test_the_examples_of_the_page_run(tmp_path: Path, example: str, said: str):
    path = tmp_path / "job.yaml"
    path.write_text(example)
    code, shown = await run(path)
    assert code == 0, shown
    assert re.search(said, shown, re.MULTILINE), shown
    assert "succeeded because coordinator succeeded" in shown


def run_example(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "trainop", "run", *arguments, EXAMPLE]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout


def test_the_example_grows_loses_a_collector_shrinks_and_learns():
    code, text = run_example()
    if NOTE in text:
        lack("network namespaces, which this user may not create (docs/local-pods.md)")
    steps = [(int(found[2]), float(found[3])) for found in STEP.finditer(text)]
    assert code == 0, text
    sizes = [collectors for collectors, _ in steps]
    assert sizes == [1] * 4 + [4] * 5 + [3] + [4] * 7 + [1] * 7, text
    assert len(re.findall(r"replaced cartpole-collector-\w{5}\.default:22270 by cartpole-collector-\w{5}\.", text)) == 1
    assert steps[-1][1] > 3 * steps[0][1], text
    assert "coordinator done: 1 collector, 1 learner" in text
    assert re.search(r"^cartpole Succeeded DIJob cartpole succeeded", text, re.MULTILINE), text


def test_without_network_namespaces_a_line_says_what_is_missing():
    _, text = run_example("--network", "addresses")
    assert NOTE in text
    assert "cartpole Failed DIJob cartpole failed because coordinator failed" in text
