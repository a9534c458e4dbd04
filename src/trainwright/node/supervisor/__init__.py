# SPDX-License-Identifier: Apache-2.0
"""The supervisor: a small process that is the parent of every process of every pod of a node.

The node agent starts it and talks to it over a socket (`protocol` defines the messages). A supervisor can outlive its
agent, so logs and exit codes survive a killed agent. The supervisor uses only the standard library, without pathlib:
importing pathlib would make its start 10 % slower.
"""
