# SPDX-License-Identifier: Apache-2.0
"""The paths of a Kubernetes API: which resource, object and subresource a request is about."""

from urllib.parse import unquote

from msgspec import Struct


class ResourcePath(Struct, frozen=True):
    """The parts of a path. Empty: no namespace (all of them), no name (the collection), no subresource."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse(raw_path: str) -> ResourcePath | None:
    """The parts of a path below `/api/VERSION` or `/apis/GROUP/VERSION`; None if the path has another form.

    A name never contains a slash, also not an encoded one, and the parts `.` and `..` have no special meaning.
    """
    parts = [unquote(part) for part in raw_path.strip("/").split("/")]
    if any(not part or "/" in part or part in (".", "..") or not part.isprintable() for part in parts):
        return None
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    # `namespaces/NAME/status` is about the namespace itself, and so is every path that ends after its name.
    if rest[0] == "namespaces" and len(rest) > 2 and (group or rest[2] not in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3:
        return None
    plural, name, subresource = (*rest, "", "")[:3]
    return ResourcePath(group, version, plural, namespace, name, subresource)
