# SPDX-License-Identifier: Apache-2.0
"""`trainwright simulate`: its options."""

from typing import Literal

import click

from trainwright.cli.flags import check_namespace, duration_option, output_option, repeated_option, text_option
from trainwright.cli.output import as_json
from trainwright.cli.plan import is_debug
from trainwright.cli.run.changes import parse
from trainwright.cli.run.intake import SIMULATION, JobToRun, take
from trainwright.cli.simulate.chart import as_svg
from trainwright.cli.simulate.faults import Fault, FaultKind, FaultReader, Scenario, default_durations
from trainwright.cli.simulate.simulation import Simulation
from trainwright.cli.simulate.text import as_text
from trainwright.core.autosize import at_largest_size
from trainwright.errors import UsageError
from trainwright.model.problem import nearest

_MAX_NODES = 100_000


@click.command("simulate")
@click.argument("file", metavar="FILE")
@repeated_option(
    "--fail",
    "fails",
    metavar="REPLICA=CODE@TIME",
    help="Let the program of REPLICA exit with CODE at TIME of the job, such as worker-1=137@30s. The word oom instead "
    "of CODE means that the replica ran out of memory. The name of a role means all its replicas. You can repeat "
    "this option and the next six.",
)
@repeated_option(
    "--lose-node",
    "lost_nodes",
    metavar="NODE@TIME[+TIME]",
    help="Let a node stop answering at TIME, such as 1@60s. With +TIME it answers again after that time, and its "
    "programs have gone on. Nodes are counted from 1.",
)
@repeated_option(
    "--evict",
    "evictions",
    metavar="REPLICA@TIME",
    help="Let the kubelet evict REPLICA at TIME because its node has too little memory.",
)
@repeated_option(
    "--preempt",
    "preemptions",
    metavar="REPLICA@TIME",
    help="Let the scheduler preempt REPLICA at TIME for another pod.",
)
@repeated_option(
    "--delete",
    "deletions",
    metavar="REPLICA@TIME",
    help="Let a user delete the pod of REPLICA at TIME.",
)
@repeated_option(
    "--suspend",
    "suspensions",
    metavar="TIME[+TIME]",
    help="Let a user suspend the job at TIME. With +TIME the user resumes it after that time.",
)
@repeated_option(
    "--duration",
    "durations",
    metavar="[ROLE=]TIME",
    help="Let each program of ROLE succeed after it has run for TIME. A restarted program runs for the whole TIME "
    "again. The word never means that it runs until it is ended.  [default: 10m; never for roles that no success rule "
    "names]",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, _MAX_NODES),
    metavar="N",
    help="Simulate N nodes.  [default: as many as replicas, at least 2]",
)
@click.option(
    "--replicas-per-node",
    type=click.IntRange(1),
    metavar="N",
    help="Let each node have room for N replicas.  [default: any number]",
)
@duration_option(
    "--start-time",
    default="5s",
    help="Let a pod take TIME from its creation until its program runs.",
)
@duration_option(
    "--until",
    default="1d",
    help="Stop the simulation at TIME if the job has not ended.",
)
@text_option("-n", "--namespace", metavar="NS", help="The namespace for a job without one.  [default: default]")
@repeated_option(
    "--set",
    "changes",
    metavar="PATH=VALUE",
    help="Change a field of the job before the simulation. You can repeat this option.",
)
@text_option("--job", "wanted", metavar="NAME", help="Simulate this job if FILE has several.")
@output_option(
    choices=("text", "json", "svg"),
    help="Print the timeline for people, everything as one JSON object, or a Gantt chart.",
)
def command(  # noqa: PLR0913, PLR0917 - one argument for each option
    file: str,
    fails: tuple[str, ...],
    lost_nodes: tuple[str, ...],
    evictions: tuple[str, ...],
    preemptions: tuple[str, ...],
    deletions: tuple[str, ...],
    suspensions: tuple[str, ...],
    durations: tuple[str, ...],
    nodes: int | None,
    replicas_per_node: int | None,
    start_time: float,
    until: float,
    namespace: str,
    changes: tuple[str, ...],
    wanted: str,
    form: Literal["text", "json", "svg"],
) -> int:
    """Drive the job in FILE through faults without running it, and show what happens.

    The real decisions of Trainwright control the job in a simulated cluster, in virtual time: nothing is started, and
    no cluster is needed. The timeline shows what restarts and with which scope, what is counted against which restart
    budget, and when and why the job ends. "-" reads standard input.

    \b
    Examples:
      trainwright simulate job.yaml --fail worker-1=137@30s
      trainwright simulate job.yaml --lose-node 1@60s+5m --nodes 4
      trainwright simulate job.yaml --suspend 2m+1m --duration worker=20m
      trainwright simulate job.yaml --fail worker=1@30s -o svg > job.svg

    \b
    Exit codes:
      0  the simulation was made, whatever the outcome of the job
      2  the manifest or an option is invalid
    """
    check_namespace(namespace)
    given = take([file], namespace, [parse(text) for text in changes], SIMULATION)
    task = _chosen(given.tasks, wanted)
    job = at_largest_size(task.loaded.job)
    count = nodes or max(2, sum(role.replicas for role in job.roles))
    reader = FaultReader(job, count)
    faults: list[Fault] = [reader.fail(text) for text in fails]
    faults += [reader.lose_node(text) for text in lost_nodes]
    hits = ((FaultKind.EVICT, evictions), (FaultKind.PREEMPT, preemptions), (FaultKind.DELETE, deletions))
    faults += [reader.hit(kind, text) for kind, texts in hits for text in texts]
    faults += [reader.suspend(text) for text in suspensions]
    takes = default_durations(job) if not is_debug(task.loaded.wire) else dict.fromkeys(role.name for role in job.roles)
    for text in durations:
        takes |= reader.duration(text)
    scenario = Scenario(tuple(faults), takes, count, replicas_per_node or 0, start_time, until)
    timeline = Simulation(task.document.file, task.kind, task.body, scenario).run()
    click.echo({"text": as_text, "json": as_json, "svg": as_svg}[form](timeline), nl=False)
    return 0


def _chosen(tasks: tuple[JobToRun, ...], wanted: str) -> JobToRun:
    """The job with this name, or the only one."""
    names = [task.key.name for task in tasks]
    if wanted and wanted not in names:
        meant = nearest(wanted, names)
        hint = f"; did you mean `{meant}`?" if meant else ""
        raise UsageError(f"--job {wanted}: the file has no such job; it has {', '.join(names)}{hint}")
    if not wanted and len(tasks) > 1:
        raise UsageError(f"the file has {len(tasks)} jobs: {', '.join(names)}; choose one with --job")
    return tasks[names.index(wanted)] if wanted else tasks[0]
