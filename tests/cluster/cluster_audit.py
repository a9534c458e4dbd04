# SPDX-License-Identifier: Apache-2.0
"""The API server's own record of who asked it for what: the honest way to count an operator's writes.

`plane.audit()` gives tests the calls since a mark; each has been answered, or is a watch that goes on.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

#: Everything but the server's own work and its health checks, when it has been answered.
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "nonResourceURLs": ["*"]},
        {"level": "None", "users": ["system:apiserver"]},
        {"level": "Metadata"},
    ],
}
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
READS = frozenset({"get", "list"})


class Call(Struct, frozen=True):
    """One request. `resource` is `pods`, `pods/status`, `genericjobs.batch.tensorstack.dev/status`."""

    user: str
    verb: str
    resource: str
    namespace: str
    name: str
    code: int
    at: str
    agent: str
    #: By the rules of RBAC, which is not the only reason for a 403.
    denied: bool = False


class Calls(tuple[Call, ...]):
    """Some requests, in the order of their answers."""

    __slots__ = ()

    def where(self, **fields: Any) -> "Calls":
        """Those with these values: `where(user="operator", code=409)`."""
        wanted = fields.items()
        return Calls(call for call in self if all(getattr(call, name) == value for name, value in wanted))

    @property
    def writes(self) -> "Calls":
        """Those that change something, whatever came of it."""
        return Calls(call for call in self if call.verb in WRITES)

    @property
    def reads(self) -> "Calls":
        """Gets and lists; watches are neither."""
        return Calls(call for call in self if call.verb in READS)

    @property
    def refused(self) -> "Calls":
        """Those that were answered with an error."""
        return Calls(call for call in self if call.code >= 400)

    def tally(self, *fields: str) -> Counter[Any]:
        """How many by these fields; without any, by user, verb, resource and code."""
        chosen = fields or ("user", "verb", "resource", "code")
        if len(chosen) == 1:
            return Counter(getattr(call, chosen[0]) for call in self)
        return Counter(tuple(getattr(call, name) for name in chosen) for call in self)


class _Account(Struct):
    username: str = ""


class _Object(Struct):
    resource: str = ""
    group: str = field(name="apiGroup", default="")
    subresource: str = ""
    namespace: str = ""
    name: str = ""


class _Response(Struct):
    code: int = 0


class _Line(Struct, rename="camel"):
    audit_id: str = field(name="auditID")
    verb: str
    user: _Account
    stage_timestamp: str
    object_ref: _Object = field(default_factory=_Object)
    response_status: _Response = field(default_factory=_Response)
    user_agent: str = ""
    annotations: dict[str, str] = {}


_decoder = msgspec.json.Decoder(_Line)


def read(path: Path, since: int = 0) -> Calls:
    """The calls that are in the file from that place on; a watch that began and ended counts once."""
    return read_on(path, since)[0]


def read_on(path: Path, since: int) -> tuple[Calls, int]:
    """The same calls, and the place after the last of them."""
    with path.open("rb") as file:
        file.seek(max(since - 1, 0))
        # The place is the size of the file at some time, and the server may have been writing a line then.
        skipped = file.readline() if since else b""
        begin = max(since - 1, 0) + len(skipped)
        text = file.read()
    whole = text[: text.rfind(b"\n") + 1]  # the last line may still be in the making
    return Calls(_calls(whole.splitlines())), begin + len(whole)


def _calls(lines: Iterable[bytes]) -> Iterable[Call]:
    seen: set[str] = set()
    for text in lines:
        line = _decoder.decode(text)
        if line.audit_id not in seen:
            seen.add(line.audit_id)
            yield _call(line)


def _call(line: _Line) -> Call:
    about = line.object_ref
    resource = f"{about.resource}.{about.group}" if about.group else about.resource
    resource += f"/{about.subresource}" if about.subresource else ""
    code, at = line.response_status.code, line.stage_timestamp
    denied = line.annotations.get("authorization.k8s.io/decision") == "forbid"
    who = line.user.username
    return Call(who, line.verb, resource, about.namespace, about.name, code, at, line.user_agent, denied)
