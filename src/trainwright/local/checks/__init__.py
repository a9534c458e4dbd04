# SPDX-License-Identifier: Apache-2.0
"""Checks: `admission` when an object enters the store, `preflight` before a run starts."""
