"""Trainwright runs distributed training jobs: one manifest, one state machine, on a laptop or on Kubernetes."""
# SPDX-License-Identifier: Apache-2.0

__version__ = "0.1.0"
