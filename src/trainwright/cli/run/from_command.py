# SPDX-License-Identifier: Apache-2.0
"""`trainwright run -- COMMAND`: the GenericJob that a command line stands for.

Each replica is one process (or, with `--torchrun`, one `torchrun` agent) that is told its rank and where rank 0 is. The
replicas are taken for a collective: they start together or not at all, a restart restarts all of them, and the job
succeeds when every one has.

Problems of the job that `run … -- COMMAND` stands for, worded by the options: the user has not seen its manifest.
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

from trainwright.cli.record import as_yaml
from trainwright.errors import UsageError
from trainwright.kinds.genericjob.policies import RESTART_SCOPE
from trainwright.manifest import Document, read
from trainwright.model.job import Body
from trainwright.model.problem import Problem

#: What problems call the manifest: it is in no file.
FILE = "command line"
_ROLE = "worker"
_PORT_NAME = "master"
#: PyTorch's own.
DEFAULT_PORT = 29500
_LONGEST_NAME = 40
_INTERPRETER = re.compile(r"python[0-9.]*")
_GPU = "nvidia.com/gpu"
#: `$$` and `$(` mean something in a manifest; what was typed is meant as it is.
_REFERENCE = re.compile(r"\$(?=[$(])")
#: One process per replica: it is the only one on its (virtual) host, and the devices that it sees are its own.
_PROCESS = {
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
    """How the command is run; None: the option was not given."""

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
        """The options that were given, as they are written."""
        fields = self.__struct_fields__
        return [f"--{name.replace('_', '-')}" for name in fields if getattr(self, name) not in (None, False)]


class CommandOrFiles(click.Command):
    """A command with files as arguments, or with the words of another command after `--`: these become `words`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take off what stands after the first `--`."""
        words: tuple[str, ...] | None = None
        if "--" in args:
            place = args.index("--")
            args, words = args[:place], tuple(args[place + 1 :])
        try:
            left = super().parse_args(ctx, [*args])  # click empties the list as it reads
        except click.NoSuchOption:
            if words is None:
                _check_files([word for word in args if not word.startswith("-")], args)
            raise
        if words is None and not ctx.resilient_parsing:
            _check_files(ctx.params["files"], args)
        ctx.params["words"] = words
        return left

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options of a command after `--` on their own."""
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
    """The options that only a command after `--` has."""
    for add in reversed(_OPTIONS):
        function = add(function)
    return function


_OPTIONS = (
    click.option(
        "--replicas", type=click.IntRange(1, 10_000), metavar="N", help="Run the command N times at once.  [default: 1]"
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
        help="Restart all replicas together when one has failed, at most N times.  [default: 0]",
    ),
    click.option("--torchrun", is_flag=True, help="Start the script by torchrun; each replica is one of its nodes."),
    click.option(
        "--nproc-per-node",
        type=click.IntRange(1),
        metavar="N",
        help="Have torchrun start N processes in each replica.  [default: one per GPU, else 1]",
    ),
    click.option("--name", metavar="NAME", help="Name the job.  [default: from the script or the program]"),
    click.option("--image", metavar="IMAGE", help="Write an image for a cluster into the manifest; here none is used."),
    click.option("--print", is_flag=True, help="Print the manifest that the command stands for, and run nothing."),
)


def _check_files(files: Sequence[str], args: list[str]) -> None:
    """Refuse what is a command rather than files, and say how it is written. Raises UsageError."""
    for word in files:
        place = args.index(word)
        before, after = shlex.join(["trainwright", "run", *args[:place], "--"]), shlex.join(args[place:])
        if shutil.which(word) and not Path(word).exists():
            raise UsageError(f"{word}: no such file; to run a command, put `--` before it: {before} {after}")
        if word.endswith(".py") and Path(word).is_file():
            raise UsageError(f"{word} is a program, not a manifest; to run it, write: {before} python3 {after}")


def check_variables(variables: Iterable[str], shape: CommandShape) -> None:
    """Refuse to replace what tells a replica who it is. Raises UsageError."""
    taken = [name for name in variables if name in _PROCESS and not shape.torchrun]
    if taken:
        raise UsageError(f"--env {taken[0]}: `trainwright run` sets it for each replica; leave it out")


def document(words: Sequence[str], shape: CommandShape, port: int = DEFAULT_PORT) -> Document:
    """The manifest, as if it had been read from a file. Raises UsageError."""
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
        raise UsageError("--nproc-per-node is for --torchrun; without it each replica is one process")
    if shape.torchrun and _INTERPRETER.fullmatch(PurePath(words[0]).name):
        rest = " ".join(words[1:]) or "train.py"
        raise UsageError(f"--torchrun starts Python itself; write: trainwright run --torchrun -- {rest}")


def _container(words: Sequence[str], shape: CommandShape) -> Body:
    typed = [_REFERENCE.sub("$$", word) for word in words]
    variables = {"PYTHONUNBUFFERED": "1"} | ({} if shape.torchrun else _PROCESS)
    container: Body = {"name": "main"}
    if shape.image:
        container["image"] = shape.image
    container["command"] = [*(_torchrun(shape) if shape.torchrun else ()), *typed]
    container["env"] = [{"name": name, "value": value} for name, value in variables.items()]
    return container | _resources(shape)


def _torchrun(shape: CommandShape) -> Iterable[str]:
    """One node of a static rendezvous: rank 0 is where everybody expects it, and restarts are ours."""
    settings: Mapping[str, str] = {
        "nnodes": f"$(replicas[{_ROLE}])",
        "nproc-per-node": str(shape.nproc_per_node or shape.gpus_per_replica or 1),
        "node-rank": "$(rank)",
        "master-addr": _PROCESS["MASTER_ADDR"],
        "master-port": _PROCESS["MASTER_PORT"],
    }
    return ["torchrun", *(f"--{name}={value}" for name, value in settings.items())]


def _resources(shape: CommandShape) -> Body:
    """A share of the CPUs is reserved, but no more is withheld: nobody gains by a process that is slowed down."""
    requests: Body = {"cpu": f"{shape.cpus_per_replica:g}"} if shape.cpus_per_replica else {}
    limits: Body = {"memory": shape.memory_per_replica} if shape.memory_per_replica else {}
    if shape.gpus_per_replica:
        limits[_GPU] = shape.gpus_per_replica
    resources = {"requests": requests, "limits": limits}
    found = {part: amounts for part, amounts in resources.items() if amounts}
    return {"resources": found} if found else {}


def _name(words: Sequence[str]) -> str:
    """From the module or script if there is one, else from the program."""
    module = next((after for word, after in pairwise(words) if word == "-m"), "")
    script = next((word for word in words if word.endswith((".py", ".sh"))), "")
    named = module or PurePath(script).stem or PurePath(words[0]).name
    plain = re.sub(r"[^a-z0-9]+", "-", named.lower()).strip("-")[:_LONGEST_NAME].strip("-")
    return plain if plain[:1].isalpha() else f"job-{plain}".rstrip("-")


#: How a path ends, and the option that wrote what is there; the first that fits.
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
    found = (option for ending, option in _OPTION_OF_PATH if re.search(rf"(^|\.|\[[\"']?)({ending})$", one.path))
    return next(found, f"{one.path or 'the job'} (--print shows the manifest)")
