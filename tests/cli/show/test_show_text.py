# SPDX-License-Identifier: Apache-2.0
"""Log lines that would wreck a screen are tamed; what people want to see of them stays."""

import pytest

from trainwright.cli.show.text import coloured, line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("step 1 loss 0.5", "step 1 loss 0.5", id="plain"),
        pytest.param("损失 0.5 ✓", "损失 0.5 ✓", id="any script"),
        pytest.param("a\tb", "a       b", id="tab"),
        pytest.param("\x1b[31mred\x1b[0m", "red", id="colour"),
        pytest.param("\x1b[2J\x1b[1;1Hgone", "gone", id="clear and home"),
        pytest.param("\x1b]0;title\x07text", "text", id="title"),
        pytest.param("\x1b]0;title\x1b\\text", "text", id="title, other end"),
        pytest.param("\x1bPq#0\x1b\\text", "text", id="device string"),
        pytest.param("\x1b(Btext\x1bc", "text", id="character set and reset"),
        pytest.param("cut \x1b[31", "cut ", id="cut off"),
        pytest.param("cut \x1b", "cut ", id="cut off at once"),
        pytest.param("\x1b]0;never closed", "", id="never closed"),
        pytest.param("bell\x07 back\x08 null\x00 del\x7f", "bell back null del", id="control characters"),
        pytest.param("\x9b31mc1", "31mc1", id="one-byte controls"),
        pytest.param("abc\u202edef", "abcdef", id="turned around"),
        pytest.param(" 10%|#  \r 50%|## \r100%|###", "100%|###", id="progress bar"),
        pytest.param("50%|## \r", "50%|## ", id="bar that ends with a return"),
        pytest.param("\r\r", "", id="nothing but returns"),
    ],
)
def test_a_line_is_made_fit_to_be_shown(text: str, shown: str) -> None:
    assert line(text) == shown
    assert line(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("plain", "plain", id="plain"),
        pytest.param("\x1b[1;31mred", "\x1b[1;31mred\x1b[0m", id="colour stays and ends"),
        pytest.param("a\x1b[31mb\x1b[2Jc\x1b[0md", "a\x1b[31mbc\x1b[0md\x1b[0m", id="only colour stays"),
        pytest.param("\x1b[31mx\x07y", "\x1b[31mxy\x1b[0m", id="controls between"),
        pytest.param("old\r\x1b[32mnew\x1b", "\x1b[32mnew\x1b[0m", id="last state of a bar"),
        pytest.param("\x1b]0;t\x07x", "x", id="no colour at all"),
        pytest.param("a\x1b\x1b[31mred", "a\x1b[31mred\x1b[0m", id="escape twice"),
        pytest.param("\x1b\x00 x \x1b[1mb", " x \x1b[1mb\x1b[0m", id="escape before a control character"),
        pytest.param("\x1bé \x1b[0m", "é \x1b[0m\x1b[0m", id="escape before other text"),
        pytest.param("\x1b\x1b[2J[2Jm\x1b[1mb", "[2Jm\x1b[1mb\x1b[0m", id="sequence inside a sequence"),
    ],
)
def test_where_colours_are_shown_they_stay(text: str, shown: str) -> None:
    assert coloured(text) == shown
