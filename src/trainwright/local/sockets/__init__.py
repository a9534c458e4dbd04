# SPDX-License-Identifier: Apache-2.0
"""The store's verbs for other processes, over a private Unix socket.

`server` answers, `client` is for agents, `blocking` for commands; `protocol` has their messages.
"""
