# SPDX-License-Identifier: Apache-2.0
"""The kinds: each decodes, defaults, checks and translates its manifests to the internal model, and renders the status.

Kinds are pure. A kind imports neither another kind nor `core`. `registry` lists all kinds; `base` defines what a kind
is.
"""
