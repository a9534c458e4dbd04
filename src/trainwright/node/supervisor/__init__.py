# SPDX-License-Identifier: Apache-2.0
"""The supervisor: a small process of its own that is the parent of every process of every pod of a node.

A node agent starts it and speaks with it over a socket (`protocol` has the messages). It can outlive the agent, and so
do logs and exit codes.
"""
