# SPDX-License-Identifier: Apache-2.0
"""The options that `describe`, `events`, `history` and `explain` share, and the choice of where to look for the job."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Literal

import click
from msgspec import Struct

from trainwright.cli.completion import complete_jobs
from trainwright.cli.flags import THIS_MACHINE, ClusterOptions, check_namespace, cluster_choice, output_option
from trainwright.cli.inspect.evidence import JobEvidence, Wanted
from trainwright.cli.live_job import namespaced
from trainwright.errors import UsageError

Form = Literal["text", "json"]


class JobChoice(Struct, frozen=True):
    """The job that the user named, and where it is."""

    #: NAME or NAMESPACE/NAME; on a cluster also KIND/NAME.
    word: str
    namespace: str = ""
    #: The id of a kept run; empty: the live or last run.
    run_id: str = ""
    cluster: ClusterOptions = THIS_MACHINE


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument JOB and the options; the command receives them as `choice` and `form`."""

    @wraps(function)
    def command(job: str, namespace: str, run_id: str, cluster: ClusterOptions, **more: Any) -> Any:
        return function(JobChoice(job, namespace, run_id, cluster), **more)

    form = output_option(choices=("text", "json"), help="Print text for people, or one JSON object.")
    run = click.option(
        "--run", "run_id", metavar="ID", default="", help="Look at the kept run ID.  [default: the live or last run]"
    )
    return click.argument("job", metavar="JOB", shell_complete=complete_jobs)(
        namespaced(run(cluster_choice(form(command))))
    )


def collect(choice: JobChoice, wanted: Wanted = Wanted.EVERYTHING) -> JobEvidence:
    """Collect what is wanted about the job: from a cluster if the user chose one, otherwise from this machine."""
    check_namespace(choice.namespace)
    if not choice.cluster.given:
        from trainwright.cli.inspect.local import collect as collect_local  # noqa: PLC0415 - a cluster does not need it

        return collect_local(choice.word, choice.namespace, choice.run_id, logs=wanted is Wanted.EVERYTHING)
    if choice.run_id:
        raise UsageError("--run names a run on this machine; it does not work with --context or --kubeconfig")
    from trainwright.cli.inspect.cluster import collect as collect_cluster  # noqa: PLC0415 - this machine needs no HTTP
    from trainwright.runtime.ports import WallClock  # noqa: PLC0415 - likewise

    now = WallClock().now()
    return collect_cluster(choice.cluster, choice.word, choice.namespace, wanted=wanted, now=now)
