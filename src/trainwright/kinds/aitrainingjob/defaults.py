# SPDX-License-Identifier: Apache-2.0
"""What a manifest leaves out or leaves empty. Called by `base.load` before anything looks at a job."""

from msgspec.structs import replace

from trainwright.kinds.aitrainingjob.wire import AITrainingJob, ReplicaSpec


def default(job: AITrainingJob) -> AITrainingJob:
    """Fill in what the user left out."""
    spec = job.spec
    specs = {name: _replica(one) for name, one in spec.replica_specs.items()}
    return replace(
        job,
        spec=replace(
            spec,
            replica_specs=specs,
            fail_policy=spec.fail_policy or "Any",
            complete_policy=spec.complete_policy or "All",
        ),
    )


def _replica(one: ReplicaSpec) -> ReplicaSpec:
    if one.restart_policy and one.restart_scope and one.fail_policy and one.complete_policy:
        return one
    return replace(
        one,
        restart_policy=one.restart_policy or "Never",
        restart_scope=one.restart_scope or "All",
        fail_policy=one.fail_policy or "Any",
        complete_policy=one.complete_policy or "All",
    )
