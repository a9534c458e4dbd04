# SPDX-License-Identifier: Apache-2.0
"""The store: objects in memory with the behaviour of an API server. Start at `store.Store`, which has the verbs."""
