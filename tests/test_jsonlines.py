# SPDX-License-Identifier: Apache-2.0
"""The framing of every socket: one JSON object per line."""

import pytest

from trainwright.jsonlines import LineSplitter, LineTooLongError, decode, encode


def test_lines_are_split_wherever_the_bytes_are() -> None:
    text = b"one\n\ntwo and more\nthr"
    for size in range(1, len(text) + 1):
        lines = LineSplitter(100)
        parts = [lines.feed(text[start : start + size]) for start in range(0, len(text), size)]
        assert [line for part in parts for line in part] == [b"one", b"", b"two and more"]
        assert lines.partial


def test_a_line_without_an_end_is_refused() -> None:
    lines = LineSplitter(10)
    lines.feed(b"x" * 10)
    with pytest.raises(LineTooLongError, match="more than 10 bytes"):
        lines.feed(b"x")


def test_a_message_is_one_line_whatever_is_in_it() -> None:
    message = {"text": "two\nlines \N{SNOWMAN}", "none": None}
    (line,) = LineSplitter(100).feed(encode(message))
    assert decode(line) == message


@pytest.mark.parametrize(
    ("line", "sentence"), [(b"x", "a line is not JSON"), (b"[1]", "expected a JSON object, found list")]
)
def test_a_line_that_is_no_object_is_refused(line: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        decode(line)
