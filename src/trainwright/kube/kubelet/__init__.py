# SPDX-License-Identifier: Apache-2.0
"""What an API server expects of a node besides running pods: `cluster` writes as kubelets do, `server` serves logs.

`trainwright node` puts them together with `local.node`, which runs the pods.
"""
