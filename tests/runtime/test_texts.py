"""Bounds of texts that leave the process: none exceeds its limit, and omissions are counted."""

from __future__ import annotations

import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainop.runtime.errors import api_error, describe
from trainop.runtime.texts import LONGEST_TEXT, cut, join_some


@given(st.text(max_size=300) | st.text("aé€🚀", max_size=300), st.integers(100, 400), st.sampled_from([0, 20, 50]))
def test_no_text_is_longer_than_its_limit_and_none_is_lost_uncounted(text: str, most: int, end: int):
    short = cut(text, most, end=end)
    if len(text.encode("utf-8", "replace")) <= most:
        assert short == text
        return
    assert len(short.encode("utf-8", "replace")) <= most
    head, count, tail = re.fullmatch(r"(.*)\.\.\. \(([\d,]+) characters left out\)(.*)", short, re.DOTALL).groups()  # type: ignore[union-attr]  # None fails
    left = int(count.replace(",", ""))
    clean = text.encode("utf-8", "replace").decode()
    assert clean.startswith(head)
    assert clean.endswith(tail)
    assert len(head) + left + len(tail) == len(text)


@pytest.mark.parametrize(
    ("texts", "total", "joined"),
    [
        ([], 0, ""),
        (["a"], 1, "a"),
        (["a", "b"], 2, "a, b"),
        (["a", "b"], 20_000, "a, b ... (and 19,998 more)"),
    ],
)
def test_omitted_items_of_a_list_are_counted(texts: list[str], total: int, joined: str):
    assert join_some(texts, total) == joined


def test_a_long_list_is_evaluated_only_as_far_as_shown():
    made = []

    def texts():
        for number in range(20_000):
            made.append(number)
            yield f"error {number:05}"

    joined = join_some(texts(), 20_000)
    assert len(joined) <= LONGEST_TEXT
    assert len(made) < 100
    shown = joined.count("error")
    assert joined.endswith(f" ... (and {20_000 - shown:,} more)")


def test_one_long_text_leaves_room_for_others():
    joined = join_some(["x" * 700_000, "short"], 2)
    assert joined.endswith("characters left out), short")
    assert len(joined) <= LONGEST_TEXT


def test_a_long_text_is_not_copied():
    text = "é" * 5_000_000
    tracemalloc.start()
    cut(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_a_server_error_is_shortened_but_evaluated_in_full():
    error = api_error(422, b'{"kind":"Status","reason":"Invalid","message":"%s the end"}' % (b"x" * 3_000_000))
    assert len(str(error)) <= LONGEST_TEXT
    assert error.message.endswith("the end")
    assert len(describe(ExceptionGroup("all", [error] * 500))) <= 2 * LONGEST_TEXT
    assert describe(ExceptionGroup("all", [error] * 500)).endswith(" more)")
