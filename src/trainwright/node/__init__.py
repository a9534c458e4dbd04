# SPDX-License-Identifier: Apache-2.0
"""The node agent: watches the pods that are bound to its node and runs them, as a kubelet does. Start at `agent`.

`agent` hands each pod to a `worker`; the worker runs its containers over the `link` to the supervisor and tells what
became of them through a `StatusReport`. It sees the place it runs in through `runtime.ports.Cluster` alone.

What an API server expects of a node besides running pods: `cluster` writes as kubelets do, `server` serves logs.

`trainwright node` puts them together with `node.node`, which runs the pods.
"""
