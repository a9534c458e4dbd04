# SPDX-License-Identifier: Apache-2.0
"""The embedded engine: a store, a scheduler and node agents on this machine. Start at `engine`.

`storage` keeps objects, `scheduling` finds nodes for pods, `agent` runs them, through processes of `supervisor`;
`network` gives them addresses, `checks` refuses what cannot be, `sockets` lets other processes in.
"""
