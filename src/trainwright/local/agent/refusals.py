# SPDX-License-Identifier: Apache-2.0
"""Why a container cannot be started as its pod asks. `environment` and `volumes` raise it, `worker` shows it.

Such a container waits (CreateContainerConfigError) and is tried again: the Secret may still come.
"""

from msgspec.structs import replace

from trainwright.model.problem import Problem

CONFIG = "CreateContainerConfigError"
CREATE = "CreateContainerError"


class Unconfigured(Exception):  # noqa: N818 - what a container is, not a defect of ours
    """A field of the pod asks for what is not there or cannot be given; `kind` and `name` if it is an object."""

    def __init__(self, path: str, message: str, near: str = "", *, kind: str = "", name: str = "") -> None:
        self.problem = Problem(path, message, near)
        self.kind = kind
        self.name = name
        super().__init__(str(self.problem))

    def __str__(self) -> str:
        return str(self.problem)

    def suggest(self, near: str) -> None:
        """Name what was probably meant."""
        self.problem = replace(self.problem, nearest=near)


def missing(path: str, kind: str, name: str, namespace: str) -> Unconfigured:
    """An object that the pod names does not exist."""
    return Unconfigured(path, f"there is no {kind} {name!r} in namespace {namespace!r}", kind=kind, name=name)
