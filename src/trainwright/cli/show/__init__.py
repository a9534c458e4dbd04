# SPDX-License-Identifier: Apache-2.0
"""How a run is shown: `lines` for pipes and files, `stream` for programs, `live` for people at a terminal.

`run.session` tells one of them what happened (`news` has the values); `pen` writes, so that no reader stops the engine.
"""
