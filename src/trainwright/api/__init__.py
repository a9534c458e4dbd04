# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes API of the background engine, for kubectl and other clients of Kubernetes. Start at `resources`.

`resources` lists what is served. `discovery` and `openapi` describe it to clients, and `table` renders the tables that
`kubectl get` prints. These modules are functions on dicts, without I/O.
"""
