# SPDX-License-Identifier: Apache-2.0
"""`Framework`: what one kind of Kubeflow v1 has of its own: names, defaults, texts, variables and rules."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

from trainwright.kinds.cel import CelRule
from trainwright.kinds.kubeflow.replicas import MainContainer, ReplicaTypes
from trainwright.kinds.kubeflow.wire import KubeflowSpec, KubeflowStatus, ReplicaSpec
from trainwright.model.job import Body, Job, Replica
from trainwright.model.problem import Problem
from trainwright.model.rule import NEVER, AnyOf, Atom, Result, Rule, Which
from trainwright.model.site import Site


class Texts(Struct, frozen=True):
    """The texts of conditions and events. `{0}` is namespace/name of the job, `{0.name}` its name."""

    running: str
    succeeded: str
    #: `{1}` is the number of failed replicas, and `{2}` their type.
    failed: str


class Framework(Struct, frozen=True, kw_only=True):
    """The table of one kind. Its functions get the spec of a job with all defaults, except `default` itself."""

    #: The name of the kind, and the name of the replica specs in its manifests.
    name: str
    field: str
    types: ReplicaTypes
    main: MainContainer
    texts: Texts
    #: The texts of a job without a leader; None: the same texts.
    texts_without_leader: Texts | None = None
    #: The struct of the whole manifest, and the struct of its status.
    wire: type[Any]
    status: type[KubeflowStatus] = KubeflowStatus
    #: The variables of a replica: (job, spec, replica, site) -> entries for `env`.
    variables: Callable[[Job, Any, Replica, Site], list[Body]]
    #: The ports of each role whose addresses the variables contain: (job, spec) -> ports by role.
    endpoints: Callable[[Job, Any], Mapping[str, tuple[int, ...]]]
    #: More init containers of a replica, after the user's: (job, replica, site) -> containers.
    init_containers: Callable[[Job, Replica, Site], list[Body]] = lambda _job, _replica, _site: []
    #: Workers start after their leader: on a cluster `init_containers` wait, on one machine the controller waits.
    awaits_leader: bool = False
    #: More objects of a live job, besides its pod group: (job, spec, site) -> objects.
    extras: Callable[[Job, Any, Site], tuple[Body, ...]] = lambda _job, _spec, _site: ()
    #: The names of these variables; a warning tells users whose own variables they replace.
    variable_names: tuple[str, ...]
    #: True: every container gets the variables; False: only the container that trains.
    in_all_containers: bool = True
    #: The restart policy of a replica spec that has none.
    restart_policy: str = "Never"
    #: Whether worker 0 has the label of the leader in a job without a leader.
    marks_worker: bool = True
    #: Whether the kind has a scale subresource, for its workers. Its status then has the label selector of the pods.
    has_scale: bool = False
    #: The original controller sets Running also immediately before it sets Succeeded or Failed.
    runs_before_end: bool = False
    #: The reason of the event for a job whose time to live is over.
    removed_reason: str = "SuccessfulDeleteJob"
    #: Defaults of this kind: (spec as written) -> spec. The shared defaults are set afterwards.
    default: Callable[[Any], Any] = lambda spec: spec
    #: Changes the restart policy of a type: (spec, type, policy as written or the default) -> policy that applies.
    adjust_policy: Callable[[Any, str, str], str] = lambda _spec, _name, policy: policy
    #: The success rule of this kind; None: every replica of the leading type must succeed.
    success: Callable[[Any], Rule] | None = None
    #: The failure rule of this kind; None: one failed replica of any type fails the job.
    failure: Callable[[Any], Rule] | None = None
    #: For conversions to this kind: combinations of settings of the spec that change the rules of a job.
    variants: tuple[Body, ...] = ({},)
    #: More checks: of one replica spec (type, replica spec, path), and of the whole manifest.
    check_replicas: Callable[[str, ReplicaSpec, str], Iterable[Problem]] = lambda _name, _spec, _path: ()
    check: Callable[[Any], Iterable[Problem]] = lambda _job: ()
    #: More CEL rules for the CRD's `spec`.
    cel_rules: tuple[CelRule, ...] = ()
    #: Completes the status: (status, job) -> status.
    complete_status: Callable[[Any, Job], Any] = lambda status, _job: status

    @property
    def path(self) -> str:
        """The path of the replica specs."""
        return f"spec.{self.field}"

    @property
    def controller(self) -> str:
        """The name of the original controller, in labels and events."""
        return f"{self.name.lower()}-controller"

    def policy_of(self, spec: KubeflowSpec, name: str) -> str:
        """The restart policy that applies to a replica type."""
        return self.adjust_policy(spec, name, str(self.types.specs(spec)[name].restart_policy))

    def success_rule(self, spec: KubeflowSpec) -> Rule:
        """When a job has succeeded. A job whose leading type has no replicas never succeeds."""
        if self.success is not None:
            return self.success(spec)
        leading = self.types.leading(spec)
        one = self.types.specs(spec).get(leading)
        return NEVER if one is None or not one.replicas else Atom(leading, Which.EVERY, Result.SUCCEEDED)

    def failure_rule(self, spec: KubeflowSpec) -> Rule:
        """When a job has failed."""
        if self.failure is not None:
            return self.failure(spec)
        return AnyOf(tuple(Atom(name, Which.SOME, Result.FAILED) for name in self.types.specs(spec)))

    def texts_of(self, job: Job) -> Texts:
        """The texts for this job."""
        other = self.texts_without_leader
        leads = self.types.leader_of((role.name, role.replicas) for role in job.roles) is not None
        return self.texts if leads or other is None else other


def leader_texts(name: str) -> Texts:
    """The texts of a kind that a leader decides."""
    return Texts(
        f"{name} {{0.name}} is running.",
        f"{name} {{0.name}} is successfully completed.",
        f"{name} {{0.name}} is failed because {{1}} {{2}} replica(s) failed.",
    )


def worker_texts(name: str) -> Texts:
    """The texts of a kind that the workers decide. The original controllers write the namespace only here."""
    return Texts(f"{name} {{0}} is running.", f"{name} {{0}} successfully completed.", leader_texts(name).failed)


def plain_variables(values: Mapping[str, object]) -> list[Body]:
    """Entries for `env` with these values, in this order."""
    return [{"name": name, "value": str(value)} for name, value in values.items()]
