# SPDX-License-Identifier: Apache-2.0
"""The machinery that drives `core`: informers, caches, work queue, controller, executor, leader election, metrics.

Start with `controller`, which is the main loop. `ports` defines the interfaces that an engine must implement.
"""
