# SPDX-License-Identifier: Apache-2.0
"""What a user's shell adds to a job: the working directory, the environment, and the folders that pods see.

`trainwright run` has one such value for the whole engine (`AgentSettings`). The background engine runs jobs of many
shells, so the folder of each job has a file with the value of that job. Variables can be secrets: only the user can
read the file, and the file is removed when the job has ended.

FOLDER/jobs/RUN/submission.json   the value of a job; RUN is in the annotation `trainwright.dev/run` of the job's pods
FOLDER/jobs/RUN/logs/POD/         the logs of a pod of this job
"""

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from trainwright.errors import EngineError
from trainwright.model.meta import RUN

FILE = "submission.json"
JOBS = "jobs"
_RUN_ID = re.compile(r"[0-9][0-9a-z-]{0,62}")


class Submission(Struct, frozen=True):
    """The part of a pod's environment that comes from the shell in which the user submitted the job."""

    #: The working directory of containers that do not set one.
    cwd: str
    #: The variables of the shell that every container inherits: see `environment.passed`.
    passed: dict[str, str] = {}
    #: Variables that replace variables of pods.
    env: dict[str, str] = {}
    #: Folders that stay visible in pods that have a /tmp of their own.
    visible: tuple[str, ...] = ()


def visible_folders(cwd: Path) -> tuple[str, ...]:
    """The folders that pods see even if they are in /tmp: working directory, our Python, the virtual environment."""
    venv = [path for path in [os.environ.get("VIRTUAL_ENV", "")] if Path(path).is_absolute()]
    return tuple(dict.fromkeys(str(path) for path in (cwd, sys.prefix, sys.base_prefix, *venv)))


def is_run_id(text: object) -> bool:
    """Whether the text can be the id of a run. It is part of a path, so it must not contain a slash."""
    return isinstance(text, str) and _RUN_ID.fullmatch(text) is not None


def job_folder(folder: str, run: str) -> str:
    """The folder of one job of the background engine."""
    return f"{folder}/{JOBS}/{run}"


def folder_of(folder: str, annotations: Mapping[str, str] | None) -> str:
    """The folder of the job of a pod with these annotations; `folder` itself in a private run."""
    run = run_of(annotations, RUN)
    return job_folder(folder, run) if run else folder


def write(folder: Path, submission: Submission) -> None:
    """Write the file into the folder of a job. Raises OSError."""
    path = folder / FILE
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as stream:
        stream.write(msgspec.json.encode(submission))
        stream.flush()
        os.fsync(stream.fileno())


def remove(folder: Path) -> None:
    """Remove the file from the folder of a job that has ended."""
    with suppress(OSError):
        (folder / FILE).unlink()


def read(folder: str) -> Submission | None:
    """The value of a job; None if its folder has no such file. Raises EngineError if the file cannot be read."""
    path = Path(folder, FILE)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Submission)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise EngineError(f"{path}: cannot be read: {error}") from None


def run_of(annotations: Mapping[str, str] | None, key: str) -> str:
    """The id of the run in these annotations; empty if there is none."""
    found = (annotations or {}).get(key, "")
    return found if is_run_id(found) else ""
