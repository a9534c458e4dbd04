# SPDX-License-Identifier: Apache-2.0
"""The background engine: `trainwright up`, `down`, `status`, `submit` and `attach`.

`place` has its files, `daemon` is its process, `recorder` keeps the record of each job, and the other modules are
commands. Jobs of the background engine have folders like those of private runs, so that `get`, `logs`, `explain` and
the other commands work for both.
"""
