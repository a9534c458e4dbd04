# SPDX-License-Identifier: Apache-2.0
"""Read the files of the command line (`-` is standard input), and find out the kind of each document.

If a document has no known kind, its problems say what was expected.
"""

import sys
from pathlib import Path

import click
from msgspec import Struct

from trainwright.errors import UsageError
from trainwright.kinds.base import Kind, load
from trainwright.kinds.registry import KINDS, find
from trainwright.manifest import LARGEST, Document, MalformedError, examine, read
from trainwright.model.job import Body
from trainwright.model.problem import Problem, nearest, shown


def documents(file: str) -> tuple[Document, ...]:
    """All documents of one file. Raises MalformedError if the file cannot be read as manifests."""
    name = "stdin" if file == "-" else click.format_filename(file)
    try:
        return read(name, _bytes(file))
    except OSError as error:
        raise MalformedError(name, _reason(error)) from None


def examined(file: str) -> tuple[Document | MalformedError, ...]:
    """All documents of one file, and an error for each part of the file that is not a document."""
    name = "stdin" if file == "-" else click.format_filename(file)
    try:
        return tuple(examine(name, _bytes(file)))
    except OSError as error:
        return (MalformedError(name, _reason(error)),)


def _bytes(file: str) -> bytes:
    """The content, up to one byte more than the limit: this byte shows that the file is too large."""
    if file == "-":
        return sys.stdin.buffer.read(LARGEST + 1)
    with Path(file).open("rb") as stream:
        return stream.read(LARGEST + 1)


def _reason(error: OSError) -> str:
    match error:
        case FileNotFoundError():
            return "no such file"
        case IsADirectoryError():
            return "this is a directory; give the files in it instead"
        case PermissionError():
            return "you have no permission to read this file"
        case _:
            return f"cannot be read: {error.strerror or error}"


#: Objects of Kubernetes that users keep in the same file as their job.
_KUBERNETES_KINDS = {
    "v1": "ConfigMap Endpoints LimitRange Namespace PersistentVolume PersistentVolumeClaim Pod ResourceQuota Secret "
    "Service ServiceAccount",
    "apiextensions.k8s.io/v1": "CustomResourceDefinition",
    "apps/v1": "DaemonSet Deployment ReplicaSet StatefulSet",
    "autoscaling/v2": "HorizontalPodAutoscaler",
    "batch/v1": "CronJob Job",
    "networking.k8s.io/v1": "Ingress NetworkPolicy",
    "policy/v1": "PodDisruptionBudget",
    "rbac.authorization.k8s.io/v1": "ClusterRole ClusterRoleBinding Role RoleBinding",
    "scheduling.k8s.io/v1": "PriorityClass",
    "storage.k8s.io/v1": "StorageClass",
}


class DocumentSubject(Struct, frozen=True):
    """What a document describes: a job of our kinds, another Kubernetes object (`beside`), or neither of the two."""

    name: str
    kind: Kind | None = None
    beside: bool = False
    problems: tuple[Problem, ...] = ()
    #: The kind that the user probably means, if `problems` are only about apiVersion and kind.
    likely: Kind | None = None

    def judge(self, body: Body) -> tuple[Problem, ...]:
        """All problems of the document. A wrong apiVersion or kind does not hide the other problems."""
        if self.kind is not None:
            return load(self.kind, body).problems
        if self.likely is None:
            return self.problems
        meant = {**body, "apiVersion": self.likely.api_version, "kind": self.likely.name}
        heads = {problem.path for problem in self.problems}
        others = load(self.likely, meant).problems
        # `self.problems` already report a missing `kind`; do not report a misspelt key such as `knd` a second time.
        return (*self.problems, *(one for one in others if "." in one.path or one.nearest not in heads))


def subject_of(body: Body) -> DocumentSubject:
    """Find out what a document describes."""
    version, word = body.get("apiVersion"), body.get("kind")
    if not isinstance(version, str) or not isinstance(word, str):
        return DocumentSubject("", problems=tuple(_missing(body)), likely=_likely(version, word))
    kind = find(version, word)
    if kind is not None:
        return DocumentSubject(f"{kind.name} {_name(body)}", kind)
    if word in _KUBERNETES_KINDS.get(version, "").split():
        return DocumentSubject(f"{version} {word} {_name(body)}", beside=True)
    return DocumentSubject("", problems=(_unknown(version, word),), likely=_likely(version, word))


def _likely(version: object, word: object) -> Kind | None:
    """The kind that the user probably means. If a kind has exactly this name, it is this kind, with any apiVersion.
    If several kinds have this name, it is the kind of this group, or the first.

    Otherwise it is a kind with this apiVersion and a similar name. If the apiVersion is missing, only the name is
    compared. If the name is missing, it is the first kind with this apiVersion.
    """
    named = [kind for kind in KINDS if kind.name == word]
    if named:
        group = version.partition("/")[0] if isinstance(version, str) else ""
        return next((kind for kind in named if kind.group == group), named[0])
    if not isinstance(version, str):
        return _misspelt(word)
    served = [kind for kind in KINDS if version in kind.served]
    near = nearest(word, [kind.name for kind in served]) if isinstance(word, str) else ""
    return next((kind for kind in served if kind.name == near or not isinstance(word, str)), None)


def _missing(body: Body) -> list[Problem]:
    """Problems for a missing apiVersion or kind. If the kind is known, the text lists only apiVersions of this kind."""
    meant = _misspelt(body.get("kind"))
    named = [kind for kind in KINDS if kind.name == body.get("kind") or kind == meant] or KINDS
    versions = " or ".join(dict.fromkeys(version for kind in named for version in kind.served))
    names = " or ".join(dict.fromkeys(kind.name for kind in KINDS))
    found = [
        Problem(key, f"expected {known}, found {shown(body[key])}" if key in body else f"missing; expected {known}")
        for key, known in (("apiVersion", versions), ("kind", names))
        if not isinstance(body.get(key), str)
    ]
    if meant is not None:
        found.append(Problem("kind", f"expected {names}, found {shown(body['kind'])}", meant.name))
    return found


def _misspelt(word: object) -> Kind | None:
    """The kind whose name is similar to the word; None if the word is spelt correctly or is a kind of Kubernetes."""
    if not isinstance(word, str) or word in " ".join(_KUBERNETES_KINDS.values()).split():
        return None
    near = nearest(word, [kind.name for kind in KINDS])
    return next((kind for kind in KINDS if kind.name == near != word), None)


def _unknown(version: str, word: str) -> Problem:
    own = [kind for kind in KINDS if kind.name == word]
    if own:
        known = [served for kind in own for served in kind.served]
        meant = nearest(version, known) or own[0].api_version
        return Problem("apiVersion", f"expected {' or '.join(known)} for a {word}, found {shown(version)}", meant)
    names = [kind.name for kind in KINDS] + _KUBERNETES_KINDS.get(version, "").split()
    listed = ", ".join(f"{kind.name} ({kind.api_version})" for kind in KINDS)
    return Problem(
        "kind",
        f"{word[:60]!r} of {version[:60]!r} is not a kind that Trainwright knows; expected {listed}",
        nearest(word, names),
    )


def _name(body: Body) -> str:
    meta = body.get("metadata")
    meta = meta if isinstance(meta, dict) else {}
    return f"{_printable(meta.get('namespace'), 'default')}/{_printable(meta.get('name'), '(no name)')}"


def _printable(value: object, otherwise: str) -> str:
    """The value if it is a name that can be printed in one line; if not, the argument `otherwise`."""
    fit = isinstance(value, str) and value and value.isprintable() and len(value) <= 253
    return str(value) if fit else otherwise


def placed(document: Document, namespace: str) -> Body:
    """The manifest with the namespace of `--namespace`. Like kubectl, refuse a manifest that has another namespace."""
    meta = document.body.get("metadata")
    if not namespace or not isinstance(meta, dict):
        return document.body
    own = meta.get("namespace") or namespace
    if own != namespace:
        raise UsageError(f"{document.file}: document {document.number} is for namespace {own!r}, not {namespace!r}")
    return document.body | {"metadata": meta | {"namespace": namespace}}
