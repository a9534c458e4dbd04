# SPDX-License-Identifier: Apache-2.0
"""Text in a terminal: prose is wrapped, tables are cut, and a pipe gets whole lines."""

from trainwright.cli.inspect.screen import cut, wrapped


def test_prose_is_wrapped_and_keeps_its_indentation() -> None:
    assert list(wrapped(["  one two-three four", "short"], 14)) == ["  one", "      two-three", "      four", "short"]


def test_a_long_word_stays_whole() -> None:
    path = "/a/very/long/path/to/a/file"
    assert list(wrapped([f"see {path}"], 12)) == ["see", f"    {path}"]


def test_a_table_is_cut() -> None:
    assert list(cut(["NAME   REASON", "a      b"], 10)) == ["NAME   RE…", "a      b"]


def test_a_pipe_gets_whole_lines() -> None:
    long = "word " * 100
    assert list(wrapped([long])) == list(cut([long])) == [long]
