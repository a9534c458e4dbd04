# SPDX-License-Identifier: Apache-2.0
"""`trainwright logs`: print the logs of replicas. The run of the job can be live or can have ended.

`command` has the options, `select` finds the log files, `node.log_segments` reads them with the times of their lines,
`merge` filters the lines and brings them into the order of time, `printer` prints them.
"""

from trainwright.cli.logs.command import command
from trainwright.cli.logs.select import LogFile, LogSelection, chosen, files

__all__ = ["LogFile", "LogSelection", "chosen", "command", "files"]
