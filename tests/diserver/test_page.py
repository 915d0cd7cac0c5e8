"""The examples of docs/di-server.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.diserver.world import world

PAGE = (Path(__file__).parent.parent.parent / "docs" / "di-server.md").read_text(encoding="utf-8")
EXAMPLES = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]


async def test_the_examples_are_requests_and_answers():
    body, documented = EXAMPLES
    async with world() as here, here.di_server() as server:
        await here.job("cartpole")
        answer = await server.post(body)
        assert answer.status == 200
        assert (list(answer.body), list(answer.data)) == (list(documented), list(documented["data"]))
        assert answer.message == documented["message"]
        for section in ("collectors", "learners"):
            written, given = documented["data"][section], answer.data[section]
            assert [shape(url) for url in given] == [shape(url) for url in written]


def shape(url: str) -> str:
    """The address without the random part of the name."""
    return re.sub(r"-[a-z0-9]{5}\.", "-*.", url)
