# SPDX-License-Identifier: Apache-2.0
"""The addresses and ports of pods, and the subnets of engines and nodes."""
