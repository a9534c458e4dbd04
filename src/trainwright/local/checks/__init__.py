# SPDX-License-Identifier: Apache-2.0
"""Checks: `admission` checks each object before it is stored, `preflight` checks jobs before a run starts."""
