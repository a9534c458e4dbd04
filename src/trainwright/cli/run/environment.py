# SPDX-License-Identifier: Apache-2.0
"""`--env` and `--env-file`: variables that replicas get besides those of their manifest.

Each counts as if every container of the manifest had it at the end of its `env`. The values stay in the memory of the
run: they are neither in the job nor in its record, so a secret that is passed by name is written nowhere.
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
_LARGEST = 1 << 20
#: Variables that training programs and their libraries read, and that people set once for their whole shell.
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


def given(options: Iterable[str], files: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """All variables by name; a later one replaces an earlier one, and `--env` those of files. Raises UsageError."""
    found: dict[str, str] = {}
    for file in files:
        for where, text in _lines(file):
            found |= _variable(text, where, environ)
    for text in options:
        found |= _variable(text, "--env", environ)
    return found


def _lines(file: str) -> Iterator[tuple[str, str]]:
    """Lines that say something, each with its place; a comment has a line of its own, as in a file for Docker."""
    shown = click.format_filename(file)
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(_LARGEST + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"--env-file {shown}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--env-file {shown}: expected UTF-8 text") from None
    if len(content) > _LARGEST:
        raise UsageError(f"--env-file {shown}: has more than {_LARGEST >> 20} MiB; expected lines NAME=VALUE")
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield f"{shown}:{number}", line.lstrip()


def _variable(text: str, where: str, environ: Mapping[str, str]) -> dict[str, str]:
    """NAME=VALUE as it is written, quotes included; or NAME, with the value that it has here."""
    name, equals, value = text.partition("=")
    if not equals:
        name = name.rstrip()
    if not _NAME.fullmatch(name):
        hint = "; leave `export` out" if name.startswith("export ") else ""
        expected = "expected NAME=VALUE or NAME, the name of letters, digits, `_`, `-` and `.`"
        raise UsageError(f"{where}: {name[:60]!r} cannot be the name of a variable; {expected}{hint}")
    if not equals and name not in environ:
        raise UsageError(f"{where}: {name} is not set in your environment; set it, or write {name}=VALUE")
    value = value if equals else environ[name]
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{where}: the value of {name} is not UTF-8 text") from None
    if "\0" in value:
        raise UsageError(f"{where}: the value of {name} has a NUL byte in it")
    return {name: value}


def check(variables: Iterable[str], tasks: Iterable[JobToRun]) -> None:
    """Refuse variables that the kind of a job sets itself: a replica would not find its peers. Raises UsageError."""
    names = list(variables)
    for task in tasks if names else ():
        taken = _taken(names, task.loaded.job)
        if taken:
            what = "sets this variable" if len(taken) == 1 else "sets these variables"
            raise UsageError(f"--env {', '.join(taken)}: {task.kind.name} {task.key} {what} for each replica")


def _taken(names: list[str], job: Job) -> list[str]:
    """Those that replicas would not get even if their template had them."""
    mark = "given"
    taken: dict[str, None] = {}
    for role in job.roles:
        asked = replace(role, template=_with(role, [{"name": name, "value": mark} for name in names]))
        pod = job.dialect.pod(job, Replica(asked, 0, 0, job.key.replica_name(role.name, 0)), Site())
        for container in (*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]):
            last = {entry["name"]: entry.get("value") for entry in container.get("env") or ()}
            taken |= dict.fromkeys(name for name in names if last.get(name, mark) != mark)
    return list(taken)


def _with(role: Role, entries: list[Body]) -> Body:
    spec = dict(role.template.get("spec") or {})
    for group in ("initContainers", "containers"):
        if spec.get(group):
            spec[group] = [{**one, "env": [*(one.get("env") or ()), *entries]} for one in spec[group]]
    return {**role.template, "spec": spec}


def left_out(passed: Iterable[str], tasks: Iterable[JobToRun], environ: Mapping[str, str]) -> list[str]:
    """The notice of well-known variables that are set here, and that no container gets; by name alone."""
    known = {*passed, *_written(tasks)}
    names = [name for name in _WELL_KNOWN if environ.get(name) and name not in known]
    return [f"not passed to replicas: {', '.join(names)}; `--env NAME` passes one"] if names else []


def _written(tasks: Iterable[JobToRun]) -> Iterator[str]:
    """Every variable that a manifest has for some container."""
    for task in tasks:
        for _, template in templates(task.body.get("spec"), "spec"):
            spec = template.get("spec") or {}
            for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
                yield from (entry["name"] for entry in container.get("env") or ())
