# SPDX-License-Identifier: Apache-2.0
"""A simulated world for tests and for `trainwright plan`: public, used by our own tests first of all.

`factories` make jobs and pods, `world` is a small cluster with an API server's manners and an operator that can die.
"""
