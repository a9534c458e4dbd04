# SPDX-License-Identifier: Apache-2.0
"""The process that unpacks layers. It has its own mount namespace and, for ordinary users, its own user namespace.

It is a process of its own because only a process with one thread can enter a user namespace, and because a layer that
makes Python use too much memory then ends one pull and not the engine. It imports only the standard library.
"""
