# SPDX-License-Identifier: Apache-2.0
"""Every example as a GenericJob: it is valid, has the same pods, and does the same under the same faults."""

import re

import pytest
from conversion_driver import Body, durations, environments, generic, jobs, kind_of, pods, simulated, to

from trainwright.kinds.base import load
from trainwright.kinds.registry import KINDS

JOBS = {name: job for name, job in jobs().items() if job["kind"] != "GenericJob"}
LOSSES = {name: to("genericjob", job).losses for name, job in JOBS.items()}
each = pytest.mark.parametrize("name", JOBS)
each_lossless = pytest.mark.parametrize("name", [name for name in JOBS if not LOSSES[name]])
#: The examples for clusters differ only in their images and volumes.
each_driven = pytest.mark.parametrize(
    "name", [name for name in JOBS if not LOSSES[name] and name.startswith("examples")]
)

#: What is lost in each example that loses something, by the path of the setting.
EXPECTED = {
    "aitrainingjob/clean-all.yaml": ["spec.replicaSpecs.pserver.template", "spec.replicaSpecs.trainer.template"],
    "aitrainingjob/clean-none.yaml": ["spec.replicaSpecs.trainer.template"],
    "aitrainingjob/edl-manual.yaml": ["spec.replicaSpecs.trainer.edlPolicy", "spec.replicaSpecs.trainer.template"],
    "aitrainingjob/edl-never.yaml": ["spec.replicaSpecs.trainer.template"],
    "aitrainingjob/elastic.yaml": [
        "spec.replicaSpecs.trainer.edlPolicy",
        "spec.replicaSpecs.trainer.restartLimit",
        "spec.replicaSpecs.trainer.restartPolicy",
        "spec.replicaSpecs.trainer.template",
    ],
    "aitrainingjob/end-all.yaml": ["spec.replicaSpecs.trainer.template"],
    "aitrainingjob/end-any.yaml": ["spec.replicaSpecs.trainer.template"],
    "aitrainingjob/end-job.yaml": ["spec.replicaSpecs.large.template", "spec.replicaSpecs.small.template"],
    "aitrainingjob/end-none.yaml": ["spec.replicaSpecs.pserver.template", "spec.replicaSpecs.trainer.template"],
    "aitrainingjob/end-rank0.yaml": ["spec.replicaSpecs.trainer.template"],
    "aitrainingjob/paddle-mnist.yaml": [
        "spec.replicaSpecs.trainer.restartPolicy",
        "spec.replicaSpecs.trainer.template",
    ],
    "aitrainingjob/paddle.yaml": ["spec.replicaSpecs.trainer.restartPolicy", "spec.replicaSpecs.trainer.template"],
    "aitrainingjob/preempted.yaml": ["spec.failPolicy", "spec.replicaSpecs.trainer.template"],
    "aitrainingjob/restart-always.yaml": ["spec.replicaSpecs.trainer.template"],
    "aitrainingjob/restart-budget.yaml": ["metadata.annotations", "spec.replicaSpecs.trainer.template"],
    "aitrainingjob/restart-exit-code.yaml": [
        "spec.replicaSpecs.trainer.restartPolicy",
        "spec.replicaSpecs.trainer.template",
    ],
    "aitrainingjob/restart-never.yaml": ["spec.replicaSpecs.trainer.template"],
    "aitrainingjob/restart-on-failure.yaml": ["spec.replicaSpecs.trainer.template"],
    "aitrainingjob/restart-on-node-fail-with-exit-code.yaml": [
        "spec.replicaSpecs.trainer.restartPolicy",
        "spec.replicaSpecs.trainer.template",
    ],
    "aitrainingjob/restart-on-node-fail.yaml": ["spec.replicaSpecs.trainer.template"],
    "aitrainingjob/scope-all.yaml": [
        "spec.replicaSpecs.pserver.template",
        "spec.replicaSpecs.trainer.restartLimit",
        "spec.replicaSpecs.trainer.template",
    ],
    "aitrainingjob/scope-pod.yaml": [
        "spec.replicaSpecs.pserver.template",
        "spec.replicaSpecs.trainer.restartLimit",
        "spec.replicaSpecs.trainer.template",
    ],
    "aitrainingjob/scope-replica.yaml": [
        "spec.replicaSpecs.pserver.template",
        "spec.replicaSpecs.trainer.restartLimit",
        "spec.replicaSpecs.trainer.restartScope",
        "spec.replicaSpecs.trainer.template",
    ],
    "aitrainingjob/tensorflow.yaml": ["spec.replicaSpecs.trainer.restartPolicy", "spec.replicaSpecs.trainer.template"],
    "aitrainingjob/time-limit.yaml": ["spec.replicaSpecs.trainer.template", "spec.timeLimit"],
    "jaxjob/psum.yaml": ["spec.runPolicy.backoffLimit"],
    "jaxjob/train.yaml": ["spec.runPolicy.backoffLimit"],
    "paddlejob/deepfm.yaml": [
        "spec.cleanPodPolicy",
        "spec.intranet",
        "spec.ps",
        "spec.runPolicy.activeDeadlineSeconds",
        "spec.runPolicy.backoffLimit",
        "spec.worker",
    ],
    "paddlejob/design.yaml": [
        "spec.cleanPodPolicy",
        "spec.intranet",
        "spec.ps",
        "spec.runPolicy.backoffLimit",
        "spec.worker",
    ],
    "paddlejob/elastic.yaml": ["spec.elastic", "spec.runPolicy.backoffLimit", "spec.worker"],
    "paddlejob/overview.yaml": [
        "spec.cleanPodPolicy",
        "spec.intranet",
        "spec.ps",
        "spec.runPolicy.backoffLimit",
        "spec.worker",
    ],
    "paddlejob/resnet.yaml": ["spec.intranet", "spec.worker"],
    "paddlejob/simple.yaml": ["spec.intranet", "spec.worker"],
    "paddlejob/wide_and_deep.yaml": ["spec.intranet", "spec.ps", "spec.runPolicy.backoffLimit", "spec.worker"],
    "paddlejob/wide_and_deep_podip.yaml": [
        "spec.intranet",
        "spec.ps.template.spec.restartPolicy",
        "spec.runPolicy.backoffLimit",
        "spec.worker.template.spec.restartPolicy",
    ],
    "paddlejob/wide_and_deep_service.yaml": ["spec.intranet", "spec.ps", "spec.runPolicy.backoffLimit", "spec.worker"],
    "paddlejob/wide_and_deep_volcano.yaml": [
        "spec.intranet",
        "spec.ps",
        "spec.runPolicy.backoffLimit",
        "spec.schedulingPolicy",
        "spec.worker",
    ],
    "pytorchjob/ddp.yaml": ["spec.runPolicy.backoffLimit"],
    "pytorchjob/workers.yaml": ["spec.pytorchReplicaSpecs.Worker.restartPolicy"],
    "tfjob/dist-mnist.yaml": ["spec.tfReplicaSpecs.Worker.restartPolicy"],
    "tfjob/multi-worker.yaml": ["spec.runPolicy.backoffLimit", "spec.tfReplicaSpecs.Worker.restartPolicy"],
    "xgboostjob/train.yaml": ["spec.runPolicy.backoffLimit"],
}


def short(text: str, job: Body) -> str:
    """The text with short host names."""
    name = job["metadata"]["name"]
    space = job["metadata"].get("namespace", "default")
    return re.sub(rf"({name}-[a-z]+-\d+)\.{space}(\.svc)?\b", r"\1", text)


def test_the_examples_have_every_kind() -> None:
    assert {kind_of(job).id for job in JOBS.values()} == {kind.id for kind in KINDS} - {"genericjob"}
    assert {kind_of(job).id for name, job in JOBS.items() if not LOSSES[name]} >= {
        "tfjob",
        "jaxjob",
        "xgboostjob",
        "pytorchjob",
    }


@each
def test_what_is_lost_is_known(name: str) -> None:
    assert sorted({problem.path for problem in LOSSES[name]}) == EXPECTED.get(name.partition("examples/")[2], [])


@each
def test_the_result_is_valid(name: str) -> None:
    assert load(kind_of(generic(JOBS[name])), generic(JOBS[name])).errors == ()


@each_lossless
def test_a_result_that_loses_nothing_has_no_new_warning(name: str) -> None:
    result = generic(JOBS[name])
    before = {problem.message for problem in load(kind_of(JOBS[name]), JOBS[name]).problems}

    assert [one for one in load(kind_of(result), result).problems if one.message not in before] == []


@each
def test_the_result_has_the_same_pods(name: str) -> None:
    before, after = pods(JOBS[name]), pods(generic(JOBS[name]))

    assert before.keys() == after.keys()
    for pod in before:
        old, new = before[pod]["spec"], after[pod]["spec"]
        assert [one["image"] for one in old["containers"]] == [one["image"] for one in new["containers"]]
        assert [one.get("command") for one in old["containers"]] == [one.get("command") for one in new["containers"]]
        assert old.get("volumes") == new.get("volumes")


@each_lossless
def test_programs_get_the_same_variables(name: str) -> None:
    before, after = pods(JOBS[name]), pods(generic(JOBS[name]))
    notes = [note.message for note in to("genericjob", JOBS[name]).notes if "also get" in note.message]

    for pod in before:
        for old, new in zip(environments(before[pod]), environments(after[pod]), strict=True):
            same = {key: short(value, JOBS[name]) for key, value in old.items()}
            assert {key: new.get(key) for key in same} == same
            more = [key for key in new.keys() - same.keys() if "_OF_REPLICA_" not in key]
            assert all(new[key] == "" and any(key in note for note in notes) for key in more)


FAULTS = (
    (),
    ("fail {first}=1@30s",),
    ("fail {first}=137@30s",),
    ("fail {last}=1@30s",),
    ("fail {last}=137@30s", "fail {last}=1@90s", "fail {first}=1@200s"),
    ("delete {last}@30s",),
    ("delete {first}@30s", "fail {last}=1@90s"),
    ("suspend 20s+30s",),
)
#: Faults after which a GenericJob restarts replicas under every policy; a note says so.
OUTSIDE = (
    ("evict {last}@30s",),
    ("preempt {last}@30s",),
    ("lose-node 1@30s",),
    ("preempt {first}@30s", "preempt {last}@90s"),
)


@each_driven
@pytest.mark.parametrize("script", [*FAULTS, *OUTSIDE], ids=" ".join)
def test_the_same_faults_have_the_same_outcome(name: str, script: tuple[str, ...]) -> None:
    job, found = JOBS[name], to("genericjob", JOBS[name])
    if script in OUTSIDE and any("also restarts" in note.message for note in found.notes):
        pytest.skip("the result restarts replicas where the source fails, and a note says so")
    roles = [role for role in load(kind_of(job), job).job.roles if role.replicas]
    first, last = f"{roles[0].name}-0", f"{roles[-1].name}-{roles[-1].replicas - 1}"
    faults = [fault.format(first=first.lower(), last=last.lower()) for fault in script]
    assert found.document is not None

    assert simulated(found.document, durations(job), *faults) == simulated(job, durations(job), *faults)


@each
def test_without_faults_and_deadlines_every_result_ends_like_its_source(name: str) -> None:
    job = JOBS[name]
    if load(kind_of(job), job).job.lifecycle.ending is not None:
        pytest.skip("an annotation ends the source")

    soon = {role: None if time is None else 2.0 for role, time in durations(job).items()}
    assert simulated(generic(job), soon) == simulated(job, soon)
