# SPDX-License-Identifier: Apache-2.0
"""Request bodies in the protobuf encoding of Kubernetes, as plain dicts.

kubectl sends some objects only in this encoding (`kubectl create configmap`, `kubectl auth can-i`), and it has no
fallback. A body is `k8s`, a zero byte, and a message `Unknown`, which has the kind and the encoded object. The table
`_MESSAGES` has the numbers of the fields, from `generated.proto` of Kubernetes 1.36.

The result is what the same client would send as JSON, without empty members: Go encodes a text that is not set as an
empty text. Only `status` and fields that an API server ignores are left out.
"""

import re
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from trainwright.api.untrusted import shown
from trainwright.model.job import Body

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
#: The event loop waits about 2 µs for each field. A ConfigMap with 66,000 entries has this number of fields.
MAX_FIELDS = 200_000
_MAGIC = b"k8s\0"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: The fields of each message: `number name type`. The types: text, bytes, int, bool, Time, IntOrString, or another
#: message; `[T]` is a list and `{T}` a map of T with texts as keys. `?` marks a field that is sent only if it is set,
#: so that an empty value means something.
_MESSAGES = {
    "Unknown": "1 typeMeta TypeMeta, 2 raw raw, 3 contentEncoding text, 4 contentType text",
    "TypeMeta": "1 apiVersion text, 2 kind text",
    "ObjectMeta": "1 name text, 2 generateName text, 3 namespace text, 5 uid text, 6 resourceVersion text,"
    " 7 generation int, 8 creationTimestamp Time, 9 deletionTimestamp Time, 10 deletionGracePeriodSeconds int?,"
    " 11 labels {text}, 12 annotations {text}, 13 ownerReferences [OwnerReference], 14 finalizers [text]",
    "OwnerReference": "1 kind text, 3 name text, 4 uid text, 5 apiVersion text, 6 controller bool?,"
    " 7 blockOwnerDeletion bool?",
    "ConfigMap": "1 metadata ObjectMeta, 2 data {text}, 3 binaryData {bytes}, 4 immutable bool?",
    "Secret": "1 metadata ObjectMeta, 2 data {bytes}, 3 type text, 4 stringData {text}, 5 immutable bool?",
    "Namespace": "1 metadata ObjectMeta, 2 spec NamespaceSpec",
    "NamespaceSpec": "1 finalizers [text]",
    "ServiceAccount": "1 metadata ObjectMeta, 2 secrets [ObjectReference], 3 imagePullSecrets [LocalObjectReference],"
    " 4 automountServiceAccountToken bool?",
    "ObjectReference": "1 kind text, 2 namespace text, 3 name text, 4 uid text, 5 apiVersion text,"
    " 6 resourceVersion text, 7 fieldPath text",
    "LocalObjectReference": "1 name text",
    "Service": "1 metadata ObjectMeta, 2 spec ServiceSpec",
    "ServiceSpec": "1 ports [ServicePort], 2 selector {text}, 3 clusterIP text, 4 type text, 5 externalIPs [text],"
    " 7 sessionAffinity text, 8 loadBalancerIP text, 9 loadBalancerSourceRanges [text], 10 externalName text,"
    " 11 externalTrafficPolicy text, 12 healthCheckNodePort int, 13 publishNotReadyAddresses bool,"
    " 14 sessionAffinityConfig SessionAffinityConfig, 17 ipFamilyPolicy text?, 18 clusterIPs [text],"
    " 19 ipFamilies [text], 20 allocateLoadBalancerNodePorts bool?, 21 loadBalancerClass text?,"
    " 22 internalTrafficPolicy text?, 23 trafficDistribution text?",
    "ServicePort": "1 name text, 2 protocol text, 3 port int, 4 targetPort IntOrString, 5 nodePort int,"
    " 6 appProtocol text?",
    "SessionAffinityConfig": "1 clientIP ClientIPConfig",
    "ClientIPConfig": "1 timeoutSeconds int?",
    "SelfSubjectAccessReview": "1 metadata ObjectMeta, 2 spec SelfSubjectAccessReviewSpec",
    "SelfSubjectAccessReviewSpec": "1 resourceAttributes ResourceAttributes?,"
    " 2 nonResourceAttributes NonResourceAttributes?",
    "ResourceAttributes": "1 namespace text, 2 verb text, 3 group text, 4 version text, 5 resource text,"
    " 6 subresource text, 7 name text, 8 fieldSelector Selector?, 9 labelSelector Selector?",
    "Selector": "1 rawSelector text, 2 requirements [SelectorRequirement]",
    "SelectorRequirement": "1 key text, 2 operator text, 3 values [text]",
    "NonResourceAttributes": "1 path text, 2 verb text",
    "SelfSubjectRulesReview": "1 metadata ObjectMeta, 2 spec SelfSubjectRulesReviewSpec",
    "SelfSubjectRulesReviewSpec": "1 namespace text",
    "SelfSubjectReview": "1 metadata ObjectMeta",
    "DeleteOptions": "1 gracePeriodSeconds int?, 2 preconditions Preconditions?, 3 orphanDependents bool?,"
    " 4 propagationPolicy text?, 5 dryRun [text]",
    "Preconditions": "1 uid text?, 2 resourceVersion text?",
    "TimeParts": "1 seconds int, 2 nanos int",
    "IntOrStringParts": "1 type int, 2 intVal int, 3 strVal text",
}
_KINDS = {
    **dict.fromkeys(("ConfigMap", "Secret", "Namespace", "ServiceAccount", "Service"), "v1"),
    **dict.fromkeys(("SelfSubjectAccessReview", "SelfSubjectRulesReview"), "authorization.k8s.io/v1"),
    "SelfSubjectReview": "authentication.k8s.io/v1",
}
_FIELD = re.compile(r"(\d+) (\w+) ([\[{]?)(\w+)[\]}]?(\??)")

#: Name, collection (`[`, `{` or empty), type, and whether an empty value means something; by number and by message.
_Field = tuple[str, str, str, bool]
_FIELDS: dict[str, dict[int, _Field]] = {
    message: {int(number): (name, many, of, bool(kept)) for number, name, many, of, kept in _FIELD.findall(text)}
    for message, text in _MESSAGES.items()
}


def decode(data: bytes) -> Body:
    """The object that a body has. Raises ValueError if the body is damaged, or if its kind is not in the table."""
    if not data.startswith(_MAGIC):
        raise ValueError("the body is not protobuf of Kubernetes: it does not begin with `k8s` and a zero byte")
    decoder = _Decoder()
    unknown = decoder.message(memoryview(data)[len(_MAGIC) :], "Unknown")
    if unknown.get("contentEncoding") or unknown.get("contentType", CONTENT_TYPE) != CONTENT_TYPE:
        raise ValueError("the object in the protobuf body has another encoding; expected protobuf")
    found = unknown.get("typeMeta", {})
    api_version, kind = found.get("apiVersion", ""), found.get("kind", "")
    # Delete options have the version of the resource that is deleted.
    if kind != "DeleteOptions" and (not kind or _KINDS.get(kind) != api_version):
        raise ValueError(
            f"a protobuf body with apiVersion {shown(api_version)} and kind {shown(kind)}, which this server reads only"
            f" as JSON; in protobuf it reads {', '.join((*_KINDS, 'DeleteOptions'))}"
        )
    return {"apiVersion": api_version, "kind": kind, **decoder.message(unknown.get("raw", memoryview(b"")), kind)}


class _Decoder:
    """Decodes the messages of one body."""

    def __init__(self) -> None:
        self._fields_left = MAX_FIELDS

    def message(self, data: memoryview, message: str) -> Body:
        """One message as a dict. The depth of the recursion is the depth of the table, whatever the data is."""
        body: Body = {}
        fields = _FIELDS[message]
        for number, wire_type, value in self._fields(data):
            if number not in fields:
                continue
            name, many, of, kept = fields[number]
            if wire_type != (_VARINT if of in ("int", "bool") else _BYTES):
                raise ValueError(f"{message}.{name} has the wire type {wire_type}, which is not that of {of}")
            if many == "{":
                key, member = self._map_entry(value, of)
                body.setdefault(name, {})[key] = member
            elif many == "[":
                body.setdefault(name, []).append(self._value(value, of))
            elif (decoded := self._value(value, of)) or kept or of == "raw":
                body[name] = decoded
            else:
                body.pop(name, None)
        return body

    def _map_entry(self, data: memoryview, of: str) -> tuple[str, Any]:
        """Key and value of one entry of a map; each is empty if it is missing."""
        parts = {1: memoryview(b""), 2: memoryview(b"")}
        for number, wire_type, part in self._fields(data):
            if wire_type != _BYTES:
                raise ValueError("an entry of a map has a number; expected a text")
            parts[number] = part
        return _text(parts[1]), self._value(parts[2], of)

    def _value(self, value: Any, of: str) -> Any:
        match of:
            case "text":
                return _text(value)
            case "bytes":
                return b64encode(value).decode()
            case "raw":
                return value
            case "bool":
                return bool(value)
            case "int":
                return value - (1 << 64) if value >> 63 else value
            case "Time":
                return _time(self.message(value, "TimeParts"))
            case "IntOrString":
                parts = self.message(value, "IntOrStringParts")
                return parts.get("strVal", "") if parts.get("type") else parts.get("intVal", 0)
        return self.message(value, of)

    def _fields(self, data: memoryview) -> Iterator[tuple[int, int, Any]]:
        """Number, wire type and value of each field: an int, or a part of the data that is not copied."""
        position, end = 0, len(data)
        while position < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise ValueError(f"the protobuf body has more than {MAX_FIELDS:,} fields")
            tag, position = _varint(data, position)
            number, wire_type = tag >> 3, tag & 7
            if not number:
                raise ValueError("the protobuf body is damaged: a field has the number 0")
            if wire_type == _VARINT:
                value, position = _varint(data, position)
                yield number, wire_type, value
                continue
            size, position = _size(data, position, wire_type)
            if size > end - position:
                raise ValueError(f"the protobuf body is damaged: field {number} has {size} bytes, which are not there")
            yield number, wire_type, data[position : position + size]
            position += size


def _text(value: memoryview) -> str:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"a text in the protobuf body is not UTF-8: {error.reason}") from None


def _time(parts: Body) -> str:
    """A time as Kubernetes writes it in JSON; empty if it is not set."""
    if not parts:
        return ""
    try:
        return (_EPOCH + timedelta(seconds=parts.get("seconds", 0))).isoformat()[:19] + "Z"
    except OverflowError:
        raise ValueError(f"a time of {parts['seconds']} seconds since 1970 is out of range") from None


def _size(data: memoryview, position: int, wire_type: int) -> tuple[int, int]:
    """The number of bytes of a value, and the position where it begins."""
    if wire_type == _BYTES:
        return _varint(data, position)
    if wire_type in _FIXED_SIZES:
        return _FIXED_SIZES[wire_type], position
    raise ValueError(f"the protobuf body has a field of the wire type {wire_type}, which Kubernetes never sends")


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """An unsigned number of at most 64 bits, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ValueError("the protobuf body ends inside of a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, position
    raise ValueError("the protobuf body has a number of more than 64 bits")
