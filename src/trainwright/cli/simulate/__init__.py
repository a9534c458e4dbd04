# SPDX-License-Identifier: Apache-2.0
"""`trainwright simulate`: drive a manifest through faults without running it.

`command` has the options, `faults` reads them, `cluster` has a scheduler and kubelets in virtual time, `simulation`
records what happens as a `timeline`, and `text` and `chart` show it.
"""

from trainwright.cli.simulate.command import command

__all__ = ["command"]
