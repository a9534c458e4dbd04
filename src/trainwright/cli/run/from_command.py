# SPDX-License-Identifier: Apache-2.0
"""`trainwright run -- COMMAND`: make a GenericJob from the command and its options.

Each replica is one process or, with `--torchrun`, one `torchrun` agent. Its environment has its rank and the address of
rank 0. The replicas are one group: they start together or not at all, a failure restarts all replicas, and the job
succeeds when all replicas have succeeded. Messages about problems contain options and not fields of the manifest,
because the user has not seen the manifest.
"""

import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

import click
from msgspec import Struct

from trainwright.cli.output import as_yaml
from trainwright.errors import UsageError
from trainwright.kinds.genericjob.policies import RESTART_SCOPE
from trainwright.manifest import Document, read
from trainwright.model.job import Body
from trainwright.model.problem import Problem

#: Error messages show this text instead of a file name, because the manifest is not in a file.
FILE = "command line"
_ROLE = "worker"
_PORT_NAME = "master"
#: PyTorch's default for MASTER_PORT, the port of rank 0.
DEFAULT_PORT = 29500
#: Maximum number of characters of a job name that is made from a command.
_MAX_NAME = 40
_INTERPRETER = re.compile(r"python[0-9.]*")
_GPU = "nvidia.com/gpu"
#: `$$` and `$(` have a special meaning in a manifest, so they must be escaped in the words of a command.
_REFERENCE = re.compile(r"\$(?=[$(])")
#: The variables of a replica. A replica is one process with its own devices, so it acts as the only rank of its host.
_RANK_VARIABLES = {
    "RANK": "$(rank)",
    "WORLD_SIZE": f"$(replicas[{_ROLE}])",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "NODE_RANK": "$(rank)",
    "GROUP_RANK": "$(rank)",
    "MASTER_ADDR": f"$(service.{_ROLE}[0].host)",
    "MASTER_PORT": f"$(service.port[{_PORT_NAME}])",
}


class CommandShape(Struct, frozen=True, kw_only=True):
    """The options for a command; None means that the option was not given."""

    replicas: int | None = None
    gpus_per_replica: int | None = None
    cpus_per_replica: float | None = None
    memory_per_replica: str | None = None
    max_restarts: int | None = None
    torchrun: bool = False
    nproc_per_node: int | None = None
    name: str | None = None
    image: str | None = None
    print: bool = False

    @property
    def given(self) -> list[str]:
        """The options that the user has given, for example `--replicas`."""
        fields = self.__struct_fields__
        return [f"--{name.replace('_', '-')}" for name in fields if getattr(self, name) not in (None, False)]


class CommandOrFiles(click.Command):
    """A click command that takes files, or takes the words of another command after `--` (the parameter `words`)."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Separate the words after the first `--`."""
        words: tuple[str, ...] | None = None
        if "--" in args:
            place = args.index("--")
            args, words = args[:place], tuple(args[place + 1 :])
        try:
            left = super().parse_args(ctx, [*args])  # a copy, because click removes the items of the list
        except click.NoSuchOption:
            if words is None:
                _check_files([word for word in args if not word.startswith("-")], args)
            raise
        if words is None and not ctx.resilient_parsing:
            _check_files(ctx.params["files"], args)
        ctx.params["words"] = words
        return left

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options for a command in a separate section."""
        sections: dict[str, list[tuple[str, str]]] = {"Options for a COMMAND": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and not isinstance(param, click.Argument):
                own = param.name in CommandShape.__struct_fields__
                sections["Options for a COMMAND" if own else "Options"].append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that only work with a command after `--`."""
    for add in reversed(_OPTIONS):
        function = add(function)
    return function


_OPTIONS = (
    click.option(
        "--replicas",
        type=click.IntRange(1, 10_000),
        metavar="N",
        help="Run the command in N replicas at the same time.  [default: 1]",
    ),
    click.option(
        "--gpus-per-replica", type=click.IntRange(0), metavar="N", help="Give each replica N GPUs of its own."
    ),
    click.option(
        "--cpus-per-replica",
        type=click.FloatRange(0, min_open=True),
        metavar="N",
        help="Reserve N CPUs for each replica.",
    ),
    click.option("--memory-per-replica", metavar="SIZE", help="Limit the memory of each replica, such as 8Gi."),
    click.option(
        "--max-restarts",
        type=click.IntRange(0),
        metavar="N",
        help="Restart all replicas together when one fails, at most N times.  [default: 0]",
    ),
    click.option(
        "--torchrun", is_flag=True, help="Start the script with torchrun. Each replica is one node of torchrun."
    ),
    click.option(
        "--nproc-per-node",
        type=click.IntRange(1),
        metavar="N",
        help="Have torchrun start N processes in each replica.  [default: one per GPU, else 1]",
    ),
    click.option(
        "--name",
        metavar="NAME",
        help="Set the name of the job.  [default: made from the name of the script or program]",
    ),
    click.option(
        "--image",
        metavar="IMAGE",
        help="Write the image for a cluster into the manifest. A run on this machine does not use it.",
    ),
    click.option("--print", is_flag=True, help="Print the manifest of the job and run nothing."),
)


def _check_files(files: Sequence[str], args: list[str]) -> None:
    """Raise UsageError if the user meant a command and not files. The error says how to write the command."""
    for word in files:
        place = args.index(word)
        before, after = shlex.join(["trainwright", "run", *args[:place], "--"]), shlex.join(args[place:])
        if shutil.which(word) and not Path(word).exists():
            raise UsageError(f"{word}: no such file; to run a command, put `--` before it: {before} {after}")
        if word.endswith(".py") and Path(word).is_file():
            raise UsageError(f"{word} is a program, not a manifest; to run it, write: {before} python3 {after}")


def check_variables(variables: Iterable[str], shape: CommandShape) -> None:
    """Raise UsageError if `--env` replaces a variable that contains the rank or the address of rank 0."""
    taken = [name for name in variables if name in _RANK_VARIABLES and not shape.torchrun]
    if taken:
        raise UsageError(f"--env {taken[0]}: `trainwright run` sets this variable for each replica; do not give it")


def document(words: Sequence[str], shape: CommandShape, port: int = DEFAULT_PORT) -> Document:
    """The manifest of the job, as a document. Raises UsageError."""
    (found,) = read(FILE, as_yaml([_manifest(words, shape, port)]).encode())
    return found


def _manifest(words: Sequence[str], shape: CommandShape, port: int) -> Body:
    _check(words, shape)
    replicas = shape.replicas or 1
    meta: Body = {"name": shape.name or _name(words)}
    spec: Body = {"cleanUpPolicy": "Unfinished", "service": {"ports": [{"name": _PORT_NAME, "port": port}]}}
    if replicas > 1:
        meta["annotations"] = {RESTART_SCOPE: "Job"}
        spec["scheduler"] = {"t9kScheduler": {}}
    restarts = {"policy": "OnFailure", "limit": shape.max_restarts} if shape.max_restarts else {"policy": "Never"}
    role = {
        "type": _ROLE,
        "replicas": replicas,
        "restartPolicy": restarts,
        "template": {"spec": {"containers": [_container(words, shape)]}},
    }
    api = {"apiVersion": "batch.tensorstack.dev/v1beta1", "kind": "GenericJob"}
    return api | {"metadata": meta, "spec": spec | {"replicaSpecs": [role]}}


def _check(words: Sequence[str], shape: CommandShape) -> None:
    if not words:
        raise UsageError("there is no command after `--`; write: trainwright run -- python3 train.py")
    if shape.nproc_per_node and not shape.torchrun:
        raise UsageError("--nproc-per-node works only with --torchrun; without it, each replica is one process")
    if shape.torchrun and _INTERPRETER.fullmatch(PurePath(words[0]).name):
        rest = " ".join(words[1:]) or "train.py"
        raise UsageError(f"--torchrun starts Python for you; write: trainwright run --torchrun -- {rest}")


def _container(words: Sequence[str], shape: CommandShape) -> Body:
    typed = [_REFERENCE.sub("$$", word) for word in words]
    variables = {"PYTHONUNBUFFERED": "1"} | ({} if shape.torchrun else _RANK_VARIABLES)
    container: Body = {"name": "main"}
    if shape.image:
        container["image"] = shape.image
    container["command"] = [*(_torchrun(shape) if shape.torchrun else ()), *typed]
    container["env"] = [{"name": name, "value": value} for name, value in variables.items()]
    return container | _resources(shape)


def _torchrun(shape: CommandShape) -> Iterable[str]:
    """torchrun with a static rendezvous, because the address of rank 0 is known and Trainwright restarts replicas."""
    settings: Mapping[str, str] = {
        "nnodes": f"$(replicas[{_ROLE}])",
        "nproc-per-node": str(shape.nproc_per_node or shape.gpus_per_replica or 1),
        "node-rank": "$(rank)",
        "master-addr": _RANK_VARIABLES["MASTER_ADDR"],
        "master-port": _RANK_VARIABLES["MASTER_PORT"],
    }
    return ["torchrun", *(f"--{name}={value}" for name, value in settings.items())]


def _resources(shape: CommandShape) -> Body:
    """The resources of a replica. There is no CPU limit: a limit would slow down a replica even if CPUs are idle."""
    requests: Body = {"cpu": f"{shape.cpus_per_replica:g}"} if shape.cpus_per_replica else {}
    limits: Body = {"memory": shape.memory_per_replica} if shape.memory_per_replica else {}
    if shape.gpus_per_replica:
        limits[_GPU] = shape.gpus_per_replica
    resources = {"requests": requests, "limits": limits}
    found = {part: amounts for part, amounts in resources.items() if amounts}
    return {"resources": found} if found else {}


def _name(words: Sequence[str]) -> str:
    """A job name: made from the name of the module or script, or from the program if the command has neither."""
    module = next((after for word, after in pairwise(words) if word == "-m"), "")
    script = next((word for word in words if word.endswith((".py", ".sh"))), "")
    named = module or PurePath(script).stem or PurePath(words[0]).name
    plain = re.sub(r"[^a-z0-9]+", "-", named.lower()).strip("-")[:_MAX_NAME].strip("-")
    return plain if plain[:1].isalpha() else f"job-{plain}".rstrip("-")


#: A pattern for the end of a field's path, and the option that sets the field. The first pattern that matches is used.
_OPTION_OF_PATH = (
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
#: A text that a message contains if this machine has too little of a resource, and the option for this resource.
_OPTION_OF_RESOURCE = (
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
    """The options that change the cause of a problem. If only `--set` can change it, the path of the field."""
    needs = [option for text, option in _OPTION_OF_RESOURCE if re.search(rf"(^|[ :]){re.escape(text)}", one.message)]
    if needs:
        return " and ".join([*needs, *["--replicas"] * (" together, " in one.message)])
    found = (option for ending, option in _OPTION_OF_PATH if re.search(rf"(^|\.|\[[\"']?)({ending})$", one.path))
    return next(found, f"{one.path or 'the job'} (--print shows the manifest)")
