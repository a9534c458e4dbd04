# SPDX-License-Identifier: Apache-2.0
"""The devices of this machine (GPUs, NPUs), and the leases by which runs of all users share them."""
