# SPDX-License-Identifier: Apache-2.0
"""All decisions. This package is pure: no I/O, no clock, no randomness. Start reading at `reconcile`."""
