# SPDX-License-Identifier: Apache-2.0
"""The command line. `main` is the way in and loads one module per command, only when that command is asked for.

Each such module has a click command named `command`; `files` reads what it is given, `output` words what it found.
"""
