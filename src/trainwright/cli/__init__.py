# SPDX-License-Identifier: Apache-2.0
"""The command line. `main` is the entry point; it imports the module of a command when the user runs that command."""
