# SPDX-License-Identifier: Apache-2.0
"""The machinery that drives `core`: informers, cache, queue, controller, executor. Knows ports, not engines.

Start at `controller`, which is the loop; `ports` is what an engine must offer.
"""
