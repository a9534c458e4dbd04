# SPDX-License-Identifier: Apache-2.0
"""`trainwright run`: a job from its manifest to its outcome, on this machine. Loaded by `cli.main`.

`command` reads the options; `intake` the manifests, `changes` what `--set` edits in them; `session` drives the engine
and watches; `model` knows how everything is, `verdict` why it ended so, `record` what is kept.
"""

from trainwright.cli.run.command import command

__all__ = ["command"]
