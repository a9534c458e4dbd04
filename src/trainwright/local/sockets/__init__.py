# SPDX-License-Identifier: Apache-2.0
"""Lets other processes use the verbs of the store through a private Unix socket.

`server` answers requests, `client` is the asyncio client for node agents, `blocking` is the client for commands, and
`protocol` defines the messages.
"""
