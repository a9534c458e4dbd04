# SPDX-License-Identifier: Apache-2.0
"""The store: objects in memory with the manners of an API server.

Start at `store`, which has the verbs; `tables` is where every write ends, `history` what watches read.
"""
