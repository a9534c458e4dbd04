# SPDX-License-Identifier: Apache-2.0
"""The devices of this machine (GPUs, NPUs): which there are, and which run of which user holds which."""
