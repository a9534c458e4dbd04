# SPDX-License-Identifier: Apache-2.0
"""`trainwright run`: run jobs on this machine, from the manifest to the outcome.

`command` defines the options, `intake` reads and checks the manifests, `changes` applies `--set`, `session` controls
the engine and watches the jobs, `model` keeps the current state of jobs and replicas, `ending` explains the outcome.
"""

from trainwright.cli.run.command import command

__all__ = ["command"]
