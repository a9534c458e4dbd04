# SPDX-License-Identifier: Apache-2.0
"""A simulated cluster for tests and for `trainwright plan`. It is a public interface.

`factories` create jobs, pods and nodes. `world` is a small cluster in memory with an operator that can be killed.
"""
