# SPDX-License-Identifier: Apache-2.0
"""What cannot be right: `admission` when an object enters the store, `preflight` before a run starts."""
