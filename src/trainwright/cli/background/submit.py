# SPDX-License-Identifier: Apache-2.0
"""`trainwright submit`: hand jobs over to the background engine, or create them on a cluster."""

import os

import click

from trainwright.cli.flags import (
    ClusterOptions,
    check_namespace,
    cluster_choice,
    output_option,
    repeated_option,
    text_option,
)
from trainwright.cli.run import environment
from trainwright.cli.run.changes import parse
from trainwright.cli.run.handover import submit
from trainwright.cli.run.intake import take
from trainwright.errors import UsageError


@click.command("submit")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@text_option(
    "-n",
    "--namespace",
    metavar="NS",
    help="The namespace for objects without a namespace.  [default: that of the context, or default]",
)
@cluster_choice
@repeated_option(
    "--set", "changes", metavar="PATH=VALUE", help="Change a field of all jobs. You can repeat this option."
)
@repeated_option(
    "--env",
    "variables",
    metavar="NAME[=VALUE]",
    help="Set an environment variable in every container. NAME alone passes the value of your environment. The engine "
    "keeps the value in a file that only you can read, until the job has ended.",
)
@repeated_option("--env-file", "env_files", metavar="FILE", help="Set the variables of FILE in every container.")
@output_option(choices=("text", "name", "json"), help="Print a sentence, only the names, or the stored jobs.")
def command(
    files: tuple[str, ...],
    namespace: str,
    cluster: ClusterOptions,
    changes: tuple[str, ...],
    form: str,
    **given: tuple[str, ...],
) -> None:
    """Hand the jobs in each FILE over to the engine in the background, or to a cluster, and return.

    "-" reads standard input. The jobs run in the current folder with your PATH, HOME and virtual environment, as with
    `trainwright run`. They continue when you log out. A finished job of the same name is replaced; its logs are kept.

    With --context or --kubeconfig, the command checks the files in the same way, and creates the jobs on the cluster
    with the Secrets, ConfigMaps and claims of the same files. Nothing that exists there is replaced.

    \b
    Examples:
      trainwright submit job.yaml
      trainwright submit --set 'spec.replicaSpecs[worker].replicas=8' job.yaml
      trainwright submit -o name job.yaml | xargs trainwright wait
      trainwright submit --context production -n lab job.yaml
    """
    check_namespace(namespace)
    edits = [parse(text) for text in changes]
    if cluster.given:
        if given["variables"] or given["env_files"]:
            raise UsageError("--env and --env-file do not work on a cluster: write the variables into the manifest")
        from trainwright.cli.remote.submit import submit_to_cluster  # noqa: PLC0415 - this machine needs no HTTP

        submit_to_cluster(cluster, files, namespace, edits, form)
        return
    env = environment.given(given["variables"], given["env_files"], os.environ)
    intake = take(files, namespace, edits)
    environment.check(env, intake.tasks)
    submit(intake, env, form)
