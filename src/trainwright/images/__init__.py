# SPDX-License-Identifier: Apache-2.0
"""Container images without podman, docker or containerd: names, registries, archives, and the store of unpacked layers.

`pull` gets an image from a registry and `archives` reads it from a file. Both give the layers to a process that unpacks
them (`unpack`), and then write a record into the `store`. An image that is present needs only this record: no network.
"""
