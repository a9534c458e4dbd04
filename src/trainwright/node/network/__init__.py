# SPDX-License-Identifier: Apache-2.0
"""Which address and which ports belong to a pod, and which range of addresses to an engine."""
