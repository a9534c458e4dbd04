# SPDX-License-Identifier: Apache-2.0
"""Translations: each kind decodes, defaults and checks its manifest, turns it into the one model, and renders back.

Pure, small, and unaware of each other and of `core`. `registry` lists them; `base` says what a kind is made of.
"""
