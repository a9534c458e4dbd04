# SPDX-License-Identifier: Apache-2.0
"""The kinds: each decodes, defaults, checks and translates its manifests to the internal model, and renders the status.

Kinds are pure and import neither each other nor `core`. `registry` lists them; `base` defines what a kind is.
"""
