# SPDX-License-Identifier: Apache-2.0
"""Decisions, all of them pure: no I/O, no clock, no randomness. Start at `reconcile`, the whole product on one page."""
