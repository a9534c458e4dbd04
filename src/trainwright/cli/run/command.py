# SPDX-License-Identifier: Apache-2.0
"""The options of `trainwright run`, and the order of things: judge everything, claim the names, then `drive`."""

import os
import time
from typing import Any

import click

from trainwright.cli.devices import declared, device_options
from trainwright.cli.duration import Duration
from trainwright.cli.flags import Servers
from trainwright.cli.record import RUN, Facts, Record
from trainwright.cli.run.changes import parse
from trainwright.cli.run.intake import Intake, take
from trainwright.cli.state import Claim, home
from trainwright.cli.subject import check_namespace
from trainwright.errors import TrainwrightError
from trainwright.model.units import rfc3339
from trainwright.runtime.clock import WallClock


@click.command("run")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--runtime",
    type=click.Choice(["auto", "sandbox", "process"]),
    default="auto",
    show_default=True,
    help="How replicas are run: each with a network, processes and mounts of its own (sandbox, Linux), or as plain "
    "processes; auto takes the first that works here.",
)
@click.option("-n", "--namespace", metavar="NS", default="", help="For objects that name none.  [default: default]")
@click.option(
    "--set", "changes", metavar="PATH=VALUE", multiple=True, help="Change a field of the jobs; may be given again."
)
@click.option("--timeout", type=Duration(), metavar="TIME", help="End the run after this long: 30, 30s, 5m, 1h.")
@click.option(
    "--grace",
    type=Duration(),
    metavar="TIME",
    help="How long replicas may take to end when the run is ended.  [default: what they ask for]",
)
@click.option("--keep", is_flag=True, help="Leave the replicas' files (volumes, /tmp) where they are.")
@click.option("--nodes", type=click.IntRange(1, 64), default=1, show_default=True, help="Share the machine out.")
@click.option("--revive", type=Duration(), metavar="TIME", help="Start a node again so long after it died.")
@device_options
@click.option(
    "--resync-period",
    "resync",
    type=Duration(),
    default="15s",
    show_default=True,
    metavar="TIME",
    help="Look at an unfinished job again after this long although nothing happened; doubles up to 5m.",
)
@click.option("--etcd-server", type=Servers(), metavar="HOST:PORT,…", default="", help="Where elastic jobs meet.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["auto", "live", "lines", "json"]),
    default="auto",
    show_default=True,
    help="A table that lives, plain lines, or JSON; auto is live on a terminal and lines elsewhere.",
)
@click.option("--logs/--no-logs", default=True, show_default=True, help="Show what replicas print.")
def command(files: tuple[str, ...], namespace: str, changes: tuple[str, ...], **given: Any) -> int:
    """Run the jobs in each FILE on this machine, follow them, and exit with their outcome.

    "-" reads standard input. Secrets, ConfigMaps and PersistentVolumeClaims in the same files are created first; other
    Kubernetes objects are skipped. No image is used: commands must be installed on this machine, and run in the
    current folder unless the manifest says otherwise. Several jobs run side by side.

    Ctrl-C ends the jobs as they wish to be ended, a second one at once. Logs and the final status are kept; where is
    said at the end. While it runs, `trainwright get|logs|exec|scale|suspend|resume|annotate|delete JOB` reach it.

    \b
    Examples:
      trainwright run job.yaml
      trainwright run --set 'spec.replicaSpecs[worker].replicas=8' --timeout 1h job.yaml
      trainwright run --runtime process --gpus 4 --nodes 2 job.yaml
      trainwright run --device huawei.com/Ascend910=8 job.yaml
      trainwright run -o json job.yaml | jq -r 'select(.type == "log") | .text'

    \b
    With -o json every line is an object with "at", "type" and, by type:
      job      namespace, job, kind, phase, replicas, counts, restarts
      replica  namespace, job, replica, phase, pod, attempt, node, restarts, reason
      log      namespace, job, replica, container, text
      event    namespace, job, about, reason, message, warning
      notice   text
      end      namespace, name, outcome, exitCode, duration, restarts, because, rule, replica, pod, container,
               code, signal, cause, lastLines, hint, unsettled, terminated, folder

    \b
    Exit codes:
      0  every job succeeded       3  the engine broke          130  interrupted (143: SIGTERM)
      1  a job failed              124  --timeout passed
      2  wrong usage, invalid manifest, name in use
    """
    check_namespace(namespace)
    given["devices"] = declared(given.pop("gpus"), given.pop("device"), given.pop("device_config"))
    intake = take(files, namespace, [parse(text) for text in changes])
    return _run(intake, given)


def _run(intake: Intake, given: dict[str, Any]) -> int:
    from trainwright.cli.run.drive import Options, Start, drive  # noqa: PLC0415 - the engine, now that it is needed

    began, clock = time.monotonic(), WallClock()
    now = clock.now()
    with Claim(home(), [task.key for task in intake.tasks], now) as claim:
        facts = Facts(tuple(str(key) for key in claim.keys), os.getpid(), rfc3339(now))
        record = Record(claim.folder)
        try:
            return drive(intake, record, Options(**given), Start(began, clock, facts))
        except TrainwrightError:
            if not (claim.folder / RUN).exists():  # nothing was started, so nothing is worth keeping
                claim.discard()
            raise
