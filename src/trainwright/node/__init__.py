# SPDX-License-Identifier: Apache-2.0
"""The node agent: watches the pods that are bound to its node and runs them, as a kubelet does. Start at `agent`.

A pod is in `pod` (its state), `lifecycle` (start and stop) and `worker` (the loop). The agent reaches the cluster
through `runtime.ports.Cluster` only; the `link` connects it to its `supervisor`, the parent of all containers. `node`
puts these parts together for `trainwright node`, with `credentials`, `kubelet_api` and `log_server`, which an API
server expects of a node.
"""
