# SPDX-License-Identifier: Apache-2.0
"""The differences between our API and a real API server that are intended, each with its reason.

docs/compatibility.md has the same list. `test_cluster_api` fails if an answer differs in another way, and if an entry
here fits no difference any more.
"""

from fnmatch import fnmatchcase

from cluster_compare import Difference
from msgspec import Struct


class Intended(Struct, frozen=True):
    """One kind of difference: what clients see, why, and where: patterns of requests and of paths in answers."""

    what: str
    why: str
    requests: tuple[str, ...]
    paths: tuple[str, ...] = ("*",)

    def fits(self, one: Difference) -> bool:
        """Whether the entry explains a difference."""
        request = any(fnmatchcase(one.request, pattern) for pattern in self.requests)
        return request and any(fnmatchcase(_plain(one.path), pattern) for pattern in self.paths)


def _plain(path: str) -> str:
    """A path without brackets, which have a meaning in patterns."""
    return path.replace("[", ".").replace("]", "")


_MESSAGE = ("body.message",)
_ERROR = ("body.message", "body.details*")
INTENDED: tuple[Intended, ...] = (
    # -- what is served
    Intended(
        "Discovery lists fewer resources, without `storageVersionHash`, and `/api` without addresses.",
        "The engine serves what jobs and their tools need; the hash only helps to migrate storage.",
        ("discovery/*",),
        ("body.resources*", "body.serverAddressByClientCIDRs"),
    ),
    Intended(
        "An unknown path is answered with a Status, not with the text `404 page not found`.",
        "A Status tells every client the same in a form that it can read.",
        ("discovery/unknown *", "discovery/create job without namespace"),
        ("contentType", "body"),
    ),
    Intended(
        "`DELETE`, and an aggregated Accept header, are refused or ignored on the document of one group.",
        "The real server ignores the method there and refuses the header; no client does either.",
        ("discovery/delete group", "discovery/version agg"),
    ),
    Intended(
        "A method that HTTP does not define gets 400, not 405.",
        "The HTTP library refuses it before the API sees it.",
        ("discovery/strange method",),
    ),
    Intended(
        "The old paths `/api/v1/watch/...` and `namespaces/NAME/finalize` do not exist.",
        "Clients watch with `?watch=true`, and no controller finalizes namespaces.",
        ("watches/watch one", "namespaces/finalize"),
    ),
    Intended(
        "For jobs, a method or subresource that does not exist is refused as for built-in resources.",
        "The real server handles custom resources by other code, with other texts and codes.",
        (
            "discovery/put job collection",
            "*/post to object",
            "*/subresource",
            "*/status delete",
            "*/status post",
            "cluster-wide/job put subresource",
        ),
    ),
    Intended(
        "A review is only created: a GET with a name gets 405, and a wrong review has our text.",
        "Reviews are not stored.",
        ("cluster-wide/one review", "cluster-wide/review"),
    ),
    Intended(
        "A request without a token gets 401; there is no user `system:anonymous`.",
        "Nobody may do anything without a token, so the client should look for its token, not for its rights.",
        ("discovery/no bearer", "discovery/no token"),
    ),
    # -- formats
    Intended(
        "Answers are JSON only: the texts of 406 and 415 name other formats.",
        "No client needs YAML or protobuf answers.",
        ("formats/*", "watches/xml", "content-types/*", "*-life/label strategic"),
        _ERROR,
    ),
    Intended(
        "Bodies in YAML get 415.",
        "kubectl and the Python clients send JSON or protobuf.",
        ("content-types/created yaml", "content-types/created json as yaml", "content-types/bad yaml"),
    ),
    Intended(
        "Server-side apply gets 415, and objects have no `managedFields`.",
        "kubectl apply without `--server-side` does the same for one user of one machine.",
        ("content-types/apply", "content-types/apply job"),
    ),
    Intended(
        "The descriptions of the columns of a Table differ.",
        "They are in our own words; kubectl does not print them.",
        ("*",),
        ("*columnDefinitions.*.description",),
    ),
    Intended(
        "An empty PartialObjectMetadataList has `items: []`, not `null`.",
        "Every other list has `[]`.",
        ("formats/empty metadata",),
        ("body.items",),
    ),
    # -- lists and watches
    Intended(
        "The texts about wrong selectors and query parameters differ.",
        "Ours name the parameter, what was found and what was expected.",
        (
            "selectors/*",
            "pages/*",
            "versions/*",
            "formats/table odd",
            "watches/bad timeout",
            "options/delete query grace",
        ),
        _MESSAGE,
    ),
    Intended(
        "A `resourceVersion` that is no number gets 400 also for get and watch, where the real server answers 500.",
        "The request is wrong, not the server.",
        ("versions/get resourceVersion=x", "watches/bad version"),
    ),
    Intended(
        "`watch=odd` gets 400; the real server takes every value but `false` and `0` as true.",
        "A mistake should not look like success.",
        ("versions/list watch=odd*",),
    ),
    Intended(
        "An unknown `continue` token gets 410 `Expired`, not 400.",
        "Tokens are kept in memory, so an unknown token may be an old one, and clients list again after 410.",
        ("pages/bad continue",),
    ),
    Intended(
        "`resourceVersionMatch=Exact` works only for the newest version; an older one gets 410.",
        "The store keeps one version of each object.",
        ("versions/list resourceVersion=*&resourceVersionMatch=Exact",),
    ),
    Intended(
        "A list with `limit` and a selector has no `continue` token if nothing follows.",
        "The real server does not look whether the rest matches.",
        ("cluster-wide/limit",),
        ("body.metadata.continue",),
    ),
    Intended(
        "A bookmark has only metadata.",
        "The real server adds the empty parts of the kind.",
        ("watches/initial empty",),
        ("body.0.object.spec", "body.0.object.status"),
    ),
    Intended(
        "A watch shows the deletion of a pod as one event, `DELETED`.",
        "The real server first sets the grace period to 0, as an event of its own.",
        ("pod-ends/*",),
        ("body", "body.metadata.resourceVersion"),
    ),
    # -- defaults
    Intended(
        "A pod gets fewer defaults: no `dnsPolicy`, `schedulerName`, `tolerations`, `qosClass` and the like.",
        "The node agent does not use these fields.",
        ("*",),
        (
            "*spec.dnsPolicy",
            "*spec.securityContext",
            "*spec.schedulerName",
            "*spec.tolerations",
            "*spec.priority",
            "*spec.enableServiceLinks",
            "*spec.preemptionPolicy",
            "*status.qosClass",
            "*containers.*.resources",
            "*containers.*.terminationMessagePath",
            "*containers.*.terminationMessagePolicy",
            "*containers.*.imagePullPolicy",
        ),
    ),
    Intended(
        "A job is stored without the defaults of its CRD, such as `cleanUpPolicy`.",
        "The engine stores what the user wrote and sets the defaults when it reads the job.",
        ("*",),
        (
            "*spec.cleanUpPolicy",
            "*spec.replicaSpecs.*.restartPolicy",
            "*spec.enableDynamicWorker",
            "*spec.runPolicy.suspend",
        ),
    ),
    Intended(
        "Nodes and events get no empty parts, such as `spec: {}`, `nodeInfo` or `eventTime: null`.",
        "An empty value says nothing; clients read a missing field in the same way.",
        ("nodes-*", "events-*", "grace/node", "options/node in namespace"),
        (
            "*nodeInfo*",
            "*daemonEndpoints",
            "*eventTime",
            "*reportingComponent",
            "*reportingInstance",
            "body.spec",
            "body.status",
            "*object.spec",
            "*object.status",
            "*items.*.spec",
            "*items.*.status",
        ),
    ),
    Intended(
        "A claim has no finalizer `kubernetes.io/pvc-protection`.",
        "No controller would remove it.",
        ("pvc-*",),
        ("*metadata.finalizers",),
    ),
    Intended(
        "Empty maps and lists that a client sends are stored, except in metadata.",
        "The store keeps what it gets; an empty value means the same as none.",
        ("pod-patches/no ports",),
        ("body.spec.ports",),
    ),
    # -- writes
    Intended(
        "A namespace is made by its first object; a write to an unknown namespace does not get 404.",
        "On one machine nobody has to prepare anything before the first job.",
        ("namespaces/absent namespace",),
    ),
    Intended(
        "The options of a deletion may be in its body and in its query at the same time.",
        "The real server ignores the query if there is a body, so that a dry run in the query deletes the object.",
        ("owners/after both",),
    ),
    Intended(
        "A namespace may get any phase in its status.",
        "Only clients with the role admin can write it, and nothing depends on it.",
        ("namespaces-life/status dry",),
    ),
    Intended(
        "An object without `apiVersion` and `kind` is accepted for jobs too.",
        "The path says which kind it is; some Python clients leave both out.",
        ("gj-short/no type", "tf-short/no type", "gj-short/null body", "tf-short/null body"),
    ),
    Intended(
        "A new object with a `resourceVersion` gets 400, not 500.",
        "The request is wrong, not the server.",
        ("*/with version",),
        ("code", "body.code", "body.reason"),
    ),
    Intended(
        "The texts about bodies that cannot be read differ: no JSON, another kind, a patch of a wrong form.",
        "Ours do not show types of the Go programming language or the whole object.",
        (
            "*/no body",
            "*/empty body",
            "*/not JSON",
            "*/list body",
            "*/text body",
            "*/null body",
            "*/wrong kind",
            "*/wrong version",
            "patches/*",
            "job-patches/*",
            "options/delete * body",
            "options/delete grace text",
        ),
        _ERROR,
    ),
    Intended(
        "`kind` in the options of a deletion is ignored.",
        "The body of a deletion can only be DeleteOptions.",
        ("options/delete wrong kind",),
    ),
    Intended(
        "A JSON patch `add` without a value adds nothing, where the real server adds an empty text.",
        "Without a value the operation means null, and null is not stored.",
        ("patches/no value",),
        ("body.data.q",),
    ),
    Intended(
        "A merge patch with an empty `resourceVersion` is accepted for jobs.",
        "It means the same as none, as for built-in kinds.",
        ("job-patches/merge version empty",),
    ),
    Intended(
        "The texts about wrong jobs are those of `trainwright validate`.",
        "They name the expected values and the nearest valid one, also for unknown fields.",
        ("job-patches/*", "gj-short/no *", "tf-short/no *"),
        ("warnings*", *_ERROR),
    ),
    Intended(
        "An error about metadata names each cause once.",
        "The real server checks the metadata of a change twice and repeats the causes.",
        ("*/patch uid", "*/finalizer*", "owners/two controllers"),
        ("body.details.causes*",),
    ),
    Intended(
        "The texts about a wrong UID or a missing version, and about a forbidden change of a pod, are shorter.",
        "The real server adds keys of its storage, or the difference of both specs.",
        ("*/put wrong uid", "*/put bare", "pod-patches/policy", "pod-patches/node"),
        _ERROR,
    ),
    Intended(
        "The write that removes the last finalizer returns the object with a new version.",
        "The removal is a write like every other.",
        ("*/finalizer off",),
        ("body.metadata.resourceVersion",),
    ),
    Intended(
        "A write to `status` changes nothing but the status, also for built-in kinds.",
        "So a controller cannot change labels by mistake.",
        ("*/status dry label",),
        ("body.metadata.labels*",),
    ),
    Intended(
        "Unknown fields of built-in kinds are found on the first level and in metadata; doubled fields never.",
        "The engine has no complete schemas of built-in kinds.",
        ("svc-life/status ignored", "svc-life/status dry", "options/strict pod", "options/strict twice"),
    ),
    Intended(
        "Less is checked in built-in kinds: for example not the content of a Secret with a type.",
        "The engine checks what it needs, and the common mistakes.",
        ("immutable/docker secret",),
    ),
    Intended(
        "A value `null` in the data of a ConfigMap is removed, where the real server stores an empty text.",
        "Null means no value.",
        ("immutable/null value",),
    ),
    Intended(
        "The name of an event has the form of other names.",
        "The store uses one rule for the names of all objects.",
        ("events-short/bad name",),
    ),
)


def explained(one: Difference) -> Intended | None:
    """The first entry that fits; None if the difference is not intended."""
    return next((entry for entry in INTENDED if entry.fits(one)), None)
