"""Splitting the chunks of a stream into lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainop.runtime.client.connection import LineSplitter, OversizedLineError


@given(st.lists(st.binary(max_size=30)), st.data())
def test_lines_are_the_same_however_the_bytes_are_cut(pieces: list[bytes], data: st.DataObject):
    whole = b"\n".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)))))
    splitter, lines = LineSplitter(), []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        lines += splitter.feed(whole[start:end])
    assert lines == whole.split(b"\n")[:-1]


@pytest.mark.parametrize(
    "chunks", [[b"12345678901"], [b"12345", b"678901"], [b"1\n12345678901\n"], [b"1\n", b"12345678901"]]
)
def test_line_beyond_the_limit_is_refused(chunks: list[bytes]):
    splitter = LineSplitter(limit=10)
    *fine, last = chunks
    for chunk in fine:
        splitter.feed(chunk)
    with pytest.raises(OversizedLineError):
        splitter.feed(last)


def test_line_of_the_limit_is_fine():
    assert LineSplitter(limit=10).feed(b"1234567890\n1234567890\n12") == [b"1234567890"] * 2
