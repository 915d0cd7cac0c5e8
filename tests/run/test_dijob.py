"""`trainop run` with DIJobs: the examples of their page."""

import re
from pathlib import Path

import pytest

from tests.run.test_run import run

PAGE = Path(__file__).parents[2] / "docs" / "kinds" / "dijob.md"
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
SAID = [
    r"^coordinator +\S+ listens on 22273$",
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


async def test_a_failure_is_reported_with_the_exit_code(tmp_path: Path):
    path = tmp_path / "job.yaml"
    path.write_text(re.sub(r"command: .*", "command: [sh, -c, exit 3]", EXAMPLES[0]))
    code, shown = await run(path)
    assert code == 1
    assert "coordinator exited with code 3" in shown
