# SPDX-License-Identifier: Apache-2.0
"""Problems of the job that `run … -- COMMAND` stands for, worded by the options: the user has not seen its manifest."""

import re
from collections.abc import Iterable, Iterator

from trainwright.model.problem import Problem

#: How a path ends, and the option that wrote what is there; the first that fits.
_OPTIONS = (
    (r"metadata\.name", "--name"),
    (r"metadata\.namespace", "--namespace"),
    (r"replicaSpecs(\[0])?(\.replicas)?|spec", "--replicas"),
    (r"restartPolicy(\.limit)?", "--max-restarts"),
    (r"image", "--image"),
    (r"command(\[\d+])?", "COMMAND"),
    (r"requests\.cpu", "--cpus-per-replica"),
    (r"limits\.memory", "--memory-per-replica"),
    (r"nvidia\.com/gpu\W*", "--gpus-per-replica"),
)
#: How a message names a resource of which there is too little.
_RESOURCES = (
    ("nvidia.com/gpu: needs", "--gpus-per-replica"),
    ("memory: needs", "--memory-per-replica"),
    ("cpu: needs", "--cpus-per-replica"),
)


def lines(problems: Iterable[Problem]) -> Iterator[str]:
    """One line per problem."""
    for one in problems:
        hint = f"; did you mean `{one.nearest}`?" if one.nearest else ""
        yield f"{'warning' if one.warning else 'error'}: {_option(one)}: {one.message}{hint}"


def _option(one: Problem) -> str:
    """The options to change; `--set` may also have written what no option writes: then the path is the user's own."""
    needs = [option for text, option in _RESOURCES if re.search(rf"(^|[ :]){re.escape(text)}", one.message)]
    if needs:
        return " and ".join([*needs, *["--replicas"] * (" together, " in one.message)])
    found = (option for ending, option in _OPTIONS if re.search(rf"(^|\.|\[[\"']?)({ending})$", one.path))
    return next(found, f"{one.path or 'the job'} (--print shows the manifest)")
