# SPDX-License-Identifier: Apache-2.0
"""The commands on a job of a Kubernetes cluster, with `--context` or `--kubeconfig`.

`find` finds a job by its name, `connection` makes it a `LiveJob`; `jobs`, `outcome`, `logs`, `exec` and `submit` have
what the command of that name does differently on a cluster. Only these options import this package, so that a command
for this machine starts fast.
"""
