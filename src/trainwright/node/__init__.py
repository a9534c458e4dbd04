# SPDX-License-Identifier: Apache-2.0
"""The node agent: watches the pods that are bound to its node and runs them, as a kubelet does. Start at `agent`.

The code of a pod is in `pod` (its state), `lifecycle` (start and stop) and `worker` (the loop). The agent reaches the
cluster only through `runtime.ports.Cluster`. The `link` connects the agent to its `supervisor`, the parent process of
all containers. `node` puts these parts together for `trainwright node`, and adds `credentials`, `kubelet_api` and
`log_server`, because an API server expects these services from a node.
"""
