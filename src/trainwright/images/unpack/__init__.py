# SPDX-License-Identifier: Apache-2.0
"""The process that unpacks layers. It has its own mount namespace and, for ordinary users, its own user namespace.

It is a process of its own because only a process with one thread can enter a user namespace, and because a layer that
makes Python use too much memory then ends one pull and not the engine. It imports only the standard library.
"""

OVERLAY, OVERLAY_USER, FLAT = FORMS = ("overlay", "overlay-user", "flat")
#: The name of the folder with the files of a layer, and of the description beside it.
FILES, DESCRIPTION = "fs", "layer.json"
#: The first part of the name of a folder that is not complete yet, or is being removed.
SCRATCH_PREFIX = ".new-"
