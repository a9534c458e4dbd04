# SPDX-License-Identifier: Apache-2.0
"""The views of a run: lines for pipes and files, JSON for programs, and a live table for people at a terminal."""
