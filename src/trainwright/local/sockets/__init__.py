# SPDX-License-Identifier: Apache-2.0
"""The store's verbs for other processes, over a private Unix socket.

`server` answers; `client` is the asyncio client of node agents, `blocking` the client of commands; `protocol` defines
the messages.
"""
