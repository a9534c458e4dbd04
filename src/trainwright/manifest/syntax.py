# SPDX-License-Identifier: Apache-2.0
"""The parser's complaints in words that help, with the place to look at. Called by `builder` for what is not YAML."""

from typing import Any

import yaml

#: What libyaml says, in words that help.
_HELP = {
    "found character that cannot start any token": "nothing may begin with this character: indent with spaces, not "
    "tabs, and put text that begins with @, % or ` in quotes",
    "mapping values are not allowed in this context": "a second `: ` on one line, or a line that is indented too far; "
    "put text that contains `: ` in quotes",
    "did not find expected key": "this line does not fit the ones above it; check its indentation and quotes",
    "could not find expected ':'": "expected `key: value`; is a colon or a space after it missing?",
    "found a tab character that violates indentation": "indent with spaces, not tabs",
    "found unexpected end of stream": "the quotes that are opened here are never closed",
}


def explain(error: yaml.YAMLError) -> tuple[Any, str]:
    """The mark of the mistake, if there is one, and what to say about it."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return None, f"not valid YAML: {' '.join(str(error).split())}"
    problem = str(error.problem or error.context)
    # What was never closed is noticed at the end of the file; where it was opened is what people need.
    mark = error.context_mark if "end of stream" in problem else error.problem_mark
    return mark or error.problem_mark, f"not valid YAML: {_HELP.get(problem, problem)}"
