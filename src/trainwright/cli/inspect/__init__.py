# SPDX-License-Identifier: Apache-2.0
"""Commands that explain a job: `describe`, `events`, `history` and `explain`.

`evidence` is what is known about a job; `local` collects it from a live or past run on this machine, `cluster` from a
Kubernetes cluster. The commands only render values that `core` computes from the evidence.
"""
