# SPDX-License-Identifier: Apache-2.0
"""The embedded engine: a store, a scheduler and node agents on this machine. Start at `engine`.

`storage` keeps the objects, `scheduling` chooses nodes for pods, `checks` refuses invalid objects and jobs that cannot
run here, and `sockets` lets other processes use the store. The package `node` contains the agents, which run the pods.
"""
