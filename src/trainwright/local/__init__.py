# SPDX-License-Identifier: Apache-2.0
"""The embedded engine: a store, a scheduler and node agents on this machine. Start at `engine`."""
