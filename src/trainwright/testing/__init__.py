# SPDX-License-Identifier: Apache-2.0
"""A public simulated cluster for tests and for `trainwright plan`.

`factories` create jobs, pods and nodes. `world` is a small cluster in memory with an operator that can be killed.
"""
