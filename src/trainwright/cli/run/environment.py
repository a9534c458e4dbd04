# SPDX-License-Identifier: Apache-2.0
"""`--env` and `--env-file`: variables for replicas, in addition to the variables in the manifest.

Each variable has the same effect as a variable at the end of the list `env` of every container. The values stay in the
memory of the run: neither the job nor the record contains the values, so a secret is not written to disk.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click
from msgspec.structs import replace

from trainwright.cli.run.intake import JobToRun
from trainwright.errors import UsageError
from trainwright.kinds.template import templates
from trainwright.model.job import Body, Job, Replica, Role
from trainwright.model.site import Site

_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_MAX_FILE_BYTES = 1 << 20
#: Variables that training programs and their libraries read, and that users often set in their shell profile.
_WELL_KNOWN = (
    "PYTHONPATH",
    "WANDB_API_KEY",
    "WANDB_BASE_URL",
    "WANDB_ENTITY",
    "WANDB_MODE",
    "WANDB_PROJECT",
    "HF_HOME",
    "HF_TOKEN",
    "HF_ENDPOINT",
    "HF_DATASETS_CACHE",
    "HF_HUB_OFFLINE",
    "HUGGING_FACE_HUB_TOKEN",
    "TRANSFORMERS_CACHE",
    "TORCH_HOME",
    "KERAS_HOME",
    "TFDS_DATA_DIR",
    "MLFLOW_TRACKING_URI",
    "COMET_API_KEY",
    "NEPTUNE_API_TOKEN",
    "NCCL_DEBUG",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "http_proxy",
    "https_proxy",
)


def current_folder() -> Path:
    """The working directory of containers that have no workingDir. Raises UsageError."""
    try:
        return Path.cwd()
    except OSError:
        raise UsageError(
            "the current folder does not exist any more; change to the folder in which the commands shall run"
        ) from None


def given(options: Iterable[str], files: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """All variables by name. A later value replaces an earlier one; `--env` is read after files. Raises UsageError."""
    found: dict[str, str] = {}
    for file in files:
        for where, text in _lines(file):
            found |= _variable(text, where, environ)
    for text in options:
        found |= _variable(text, "--env", environ)
    return found


def _lines(file: str) -> Iterator[tuple[str, str]]:
    """For each line with a variable: `FILE:NUMBER` and the line. `#` begins a comment only at the start of a line."""
    shown = click.format_filename(file)
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(_MAX_FILE_BYTES + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"--env-file {shown}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--env-file {shown}: expected UTF-8 text") from None
    if len(content) > _MAX_FILE_BYTES:
        size = f"{_MAX_FILE_BYTES >> 20} MiB"
        raise UsageError(f"--env-file {shown}: has more than {size}; expected lines NAME=VALUE")
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield f"{shown}:{number}", line.lstrip()


def _variable(text: str, where: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Parse NAME=VALUE (quotes are part of the value), or only NAME: its value is then the value in our environment."""
    name, equals, value = text.partition("=")
    if not equals:
        name = name.rstrip()
    if not _NAME.fullmatch(name):
        hint = "; remove `export`" if name.startswith("export ") else ""
        expected = "expected NAME=VALUE or NAME; a name has letters, digits, `_`, `-` and `.`"
        raise UsageError(f"{where}: {name[:60]!r} is not a valid name of a variable; {expected}{hint}")
    if not equals and name not in environ:
        raise UsageError(f"{where}: {name} is not set in your environment; set it, or write {name}=VALUE")
    value = value if equals else environ[name]
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{where}: the value of {name} is not UTF-8 text") from None
    if "\0" in value:
        raise UsageError(f"{where}: the value of {name} contains a NUL byte")
    return {name: value}


def check(variables: Iterable[str], tasks: Iterable[JobToRun]) -> None:
    """Raise UsageError if the kind of a job sets one of these variables: replicas need it to find each other."""
    names = list(variables)
    for task in tasks if names else ():
        taken = _set_by_kind(names, task.loaded.job)
        if taken:
            what = "sets this variable" if len(taken) == 1 else "sets these variables"
            raise UsageError(f"--env {', '.join(taken)}: {task.kind.name} {task.key} {what} for each replica")


def _set_by_kind(names: list[str], job: Job) -> list[str]:
    """The variables that the kind of the job sets in a pod even if the template already sets them."""
    mark = "given"
    taken: dict[str, None] = {}
    for role in job.roles:
        changed = replace(role, template=_with_env(role, [{"name": name, "value": mark} for name in names]))
        pod = job.dialect.pod(job, Replica(changed, 0, 0, job.key.replica_name(role.name, 0)), Site())
        for container in (*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]):
            last = {entry["name"]: entry.get("value") for entry in container.get("env") or ()}
            taken |= dict.fromkeys(name for name in names if last.get(name, mark) != mark)
    return list(taken)


def _with_env(role: Role, entries: list[Body]) -> Body:
    spec = dict(role.template.get("spec") or {})
    for group in ("initContainers", "containers"):
        if spec.get(group):
            spec[group] = [{**one, "env": [*(one.get("env") or ()), *entries]} for one in spec[group]]
    return {**role.template, "spec": spec}


def not_passed(passed: Iterable[str], tasks: Iterable[JobToRun], environ: Mapping[str, str]) -> list[str]:
    """A notice with the names of well-known variables that our environment has but that no container gets."""
    known = {*passed, *_in_manifests(tasks)}
    names = [name for name in _WELL_KNOWN if environ.get(name) and name not in known]
    return [f"not passed to replicas: {', '.join(names)}; to pass a variable, give --env NAME"] if names else []


def _in_manifests(tasks: Iterable[JobToRun]) -> Iterator[str]:
    """Every variable that a manifest sets in any container."""
    for task in tasks:
        for _, template in templates(task.body.get("spec"), "spec"):
            spec = template.get("spec") or {}
            for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
                yield from (entry["name"] for entry in container.get("env") or ())
