# SPDX-License-Identifier: Apache-2.0
"""Everything that is refused or warned of: exact path, message and nearest spelling, all at once."""

from typing import Any

import msgspec
import pytest
from genericjob_driver import Driver, container, manifest, replicas
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.kinds.base import load
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.model.job import Body
from trainwright.model.problem import Problem

POD = "spec.replicaSpecs[0].template.spec"
HTTP = {"ports": [{"name": "http", "port": 80}]}
FORMS = "$(service.TYPE[RANK].host), $(service.port[NAME]) or $(replicas[TYPE])"


def error(path: str, message: str, near: str = "") -> Problem:
    return Problem(path, message, near)


def warning(path: str, message: str, near: str = "") -> Problem:
    return Problem(path, message, near, warning=True)


def no_type(path: str, name: str, near: str = "") -> Problem:
    return error(path, f"there is no replica type {name!r}; the job has worker", near)


def with_text(text: str, **spec: Any) -> Body:
    return manifest(replicas(pod={"containers": [container(args=[text])]}), **spec)


LONG = "j" * 55
CASES: dict[str, tuple[Body, list[Problem]]] = {
    "nothing is wrong": (manifest(), []),
    "a type that is no part of a name": (
        manifest(replicas("Worker_1")),
        [
            error(
                "spec.replicaSpecs[0].type",
                "the text 'Worker_1' is not allowed here; expected: Lower-case letters, digits and `-`, with a letter "
                "or digit at both ends",
            )
        ],
    ),
    "a restart policy as a word": (
        manifest(replicas(restartPolicy="OnFailure")),
        [
            error(
                "spec.replicaSpecs[0].restartPolicy",
                "expected a mapping, found the text 'OnFailure'",
                "{policy: OnFailure}",
            )
        ],
    ),
    "no name": (manifest(name=""), [error("metadata.name", "a job needs a name")]),
    "a name with dots": (
        manifest(name="my.job"),
        [error("metadata.name", "'my.job' becomes part of object names: use lower-case letters, digits and dashes")],
    ),
    "a name that a service may not have": (
        manifest(name="7up", service={}),
        [error("metadata.name", "'7up' starts with a digit, which the names of services may not")],
    ),
    "the same name without services": (manifest(name="7up"), []),
    "as many replicas as a job may have": (manifest(replicas("a", 5_000), replicas("b", 5_000)), []),
    "more replicas than a job may have": (
        manifest(replicas("a", 5_000), replicas("b", 5_001)),
        [error("spec.replicaSpecs", "a job may have 10000 replicas; this one has 10001")],
    ),
    "a nested variable": (
        with_text("$(service.worker[$(rank)].host)", service={}),
        [
            warning(
                f"{POD}.containers[0].args[0]",
                f"$(service.worker[$(rank)].host) is left as it is; variables are written {FORMS} and cannot be nested",
            )
        ],
    ),
    "variables of run modes": (
        manifest(
            runMode={
                "debug": {"replicaSpecs": [{"type": "worker", "command": ["a", "$(replicas[x])"]}]},
                "pause": {
                    "resumeSpecs": [{"type": "worker", "command": ["$(replicas[y])"], "args": ["$(replicas[z])"]}]
                },
            }
        ),
        [
            no_type("spec.runMode.debug.replicaSpecs[0].command[1]", "x"),
            no_type("spec.runMode.pause.resumeSpecs[0].command[0]", "y"),
            no_type("spec.runMode.pause.resumeSpecs[0].args[0]", "z"),
        ],
    ),
    "names of 63 characters": (manifest(name=LONG[1:]), []),
    "names of 64 characters": (
        manifest(name=LONG),
        [
            error(
                "spec.replicaSpecs[0].type",
                f"the replica's name '{LONG}-worker-3' has 64 characters; at most 63 are allowed: "
                "shorten metadata.name or the type",
            )
        ],
    ),
    "ranks of two digits make longer names": (
        manifest(replicas(count=11), name=LONG[1:]),
        [
            error(
                "spec.replicaSpecs[0].type",
                f"the replica's name '{LONG[1:]}-worker-10' has 64 characters; at most 63 are allowed: "
                "shorten metadata.name or the type",
            )
        ],
    ),
    "a type twice": (
        manifest(replicas("worker", 1), replicas("worker", 2)),
        [error("spec.replicaSpecs", "replica type 'worker' is given 2 times; each may be given once")],
    ),
    "no replica at all": (
        manifest(replicas(count=0)),
        [error("spec.replicaSpecs", "every type has 0 replicas; a job needs at least one")],
    ),
    "a type without replicas besides another": (manifest(replicas("ps", 0), replicas("worker", 1)), []),
    "Always without a limit": (
        manifest(replicas(restartPolicy={"policy": "Always"})),
        [
            warning(
                "spec.replicaSpecs[0].restartPolicy.limit",
                "policy Always with limit 0 never restarts anything: give the number of restarts",
            )
        ],
    ),
    "a pod's own restart policy": (
        manifest(replicas(pod={"restartPolicy": "OnFailure"})),
        [
            warning(
                f"{POD}.restartPolicy",
                "'OnFailure' is ignored: the controller restarts replicas, by restartPolicy of the replica",
            )
        ],
    ),
    "a pod's restart policy Never": (manifest(replicas(pod={"restartPolicy": "Never"})), []),
    "an unknown type in a rule": (
        manifest(successRules=[{"worker": [0]}, {"wroker": [0]}]),
        [no_type("spec.successRules[1]", "wroker", "worker")],
    ),
    "unknown ranks in a rule": (
        manifest(failureRules=[{"worker": [0, 4, "9"]}]),
        [
            error("spec.failureRules[0].worker", "there is no rank 4: worker has 4 replicas, counted from 0"),
            error("spec.failureRules[0].worker", "there is no rank 9: worker has 4 replicas, counted from 0"),
        ],
    ),
    "a port name twice": (
        manifest(service={"ports": [{"name": "a", "port": 1}, {"name": "a", "port": 2}]}),
        [error("spec.service.ports", "port name 'a' is given 2 times; each may be given once")],
    ),
    "a port twice": (
        manifest(service={"ports": [{"name": "a", "port": 1}, {"name": "b", "port": 1, "protocol": "TCP"}]}),
        [error("spec.service.ports", "port '1/TCP' is given 2 times; each may be given once")],
    ),
    "several ports, one without a name": (
        manifest(service={"ports": [{"name": "a", "port": 1}, {"port": 2}]}),
        [error("spec.service.ports[1].name", "every port needs a name when there are several")],
    ),
    "an unknown type in debug": (
        manifest(runMode={"debug": {"replicaSpecs": [{"type": "work"}]}}),
        [no_type("spec.runMode.debug.replicaSpecs[0].type", "work", "worker")],
    ),
    "a type twice in debug": (
        manifest(runMode={"debug": {"replicaSpecs": [{"type": "worker"}] * 2}}),
        [error("spec.runMode.debug.replicaSpecs", "replica type 'worker' is given 2 times; each may be given once")],
    ),
    "an unknown type in resume": (
        manifest(runMode={"pause": {"resumeSpecs": [{"type": "worker"}, {"type": "zzz"}]}}),
        [no_type("spec.runMode.pause.resumeSpecs[1].type", "zzz")],
    ),
    "a type twice in resume": (
        manifest(runMode={"pause": {"resumeSpecs": [{"type": "worker"}] * 3}}),
        [error("spec.runMode.pause.resumeSpecs", "replica type 'worker' is given 3 times; each may be given once")],
    ),
    "pause and debug": (
        manifest(runMode={"pause": {"enable": True}, "debug": {"enabled": True}}),
        [warning("spec.runMode", "both pause and debug are enabled; the job stays paused")],
    ),
    "a host without a service": (
        with_text("$(service.worker[0].host)"),
        [
            error(
                f"{POD}.containers[0].args[0]",
                "$(service.worker[0].host) needs spec.service, which is not set: no replica is exposed",
            )
        ],
    ),
    "a port without a service": (
        with_text("$(service.port[http])"),
        [
            error(
                f"{POD}.containers[0].args[0]",
                "$(service.port[http]) needs spec.service, which is not set: no replica is exposed",
            )
        ],
    ),
    "the host of an unknown type": (
        with_text("$(service.worke[0].host)", service=HTTP),
        [no_type(f"{POD}.containers[0].args[0]", "worke", "worker")],
    ),
    "the host of an unknown rank": (
        with_text("$(service.worker[4].host)", service=HTTP),
        [error(f"{POD}.containers[0].args[0]", "$(service.worker[4].host): worker has 4 replicas, counted from 0")],
    ),
    "an unknown port": (
        with_text("$(service.port[htp])", service=HTTP),
        [error(f"{POD}.containers[0].args[0]", "$(service.port[htp]): spec.service has no port of that name", "http")],
    ),
    "replicas of an unknown type": (
        with_text("$(replicas[workers])"),
        [no_type(f"{POD}.containers[0].args[0]", "workers", "worker")],
    ),
    "almost a variable": (
        with_text("$(service.worker[0].port)", service=HTTP),
        [
            warning(
                f"{POD}.containers[0].args[0]",
                f"$(service.worker[0].port) is left as it is; variables are written {FORMS}",
            )
        ],
    ),
    "an escaped variable points nowhere and may": (with_text("$$(service.nobody[9].host)"), []),
    "the kubelet's variables are its own business": (with_text("$(SERVICE) $(replicas)"), []),
    "variables everywhere": (
        manifest(
            replicas(
                pod={
                    "initContainers": [container("a", command=["ok", "$(replicas[x1])"])],
                    "containers": [
                        container("b"),
                        container("c", args=["$(replicas[x2])"], env=[{"name": "N", "value": "$(replicas[x3])"}]),
                    ],
                }
            )
        ),
        [
            no_type(f"{POD}.initContainers[0].command[1]", "x1"),
            no_type(f"{POD}.containers[1].args[0]", "x2"),
            no_type(f"{POD}.containers[1].env[0].value", "x3"),
        ],
    ),
    "limits below requests": (
        manifest(
            replicas(
                pod={"containers": [container(resources={"limits": {"cpu": "500m"}, "requests": {"cpu": 1}})]},
            )
        ),
        [
            error(
                f"{POD}.containers[0].resources.limits.cpu",
                "limits may not be below requests: the limit is 500m, the request 1",
            )
        ],
    ),
    "limits equal to requests": (
        manifest(
            replicas(
                pod={
                    "containers": [container(resources={"limits": {"memory": "1Gi"}, "requests": {"memory": "1024Mi"}})]
                }
            )
        ),
        [],
    ),
    "more shared memory than memory": (
        manifest(
            replicas(
                pod={
                    "containers": [
                        container(
                            resources={"limits": {"memory": "1Gi"}},
                            volumeMounts=[{"name": "dshm", "mountPath": "/dev/shm"}],  # noqa: S108 - in the pod
                        )
                    ],
                    "volumes": [{"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}],
                }
            )
        ),
        [
            warning(
                f"{POD}.volumes[0].emptyDir.sizeLimit",
                "2Gi of shared memory is more than the container's memory limit of 1Gi, against which it counts",
            )
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_said_of_a_manifest(case: str) -> None:
    document, expected = CASES[case]

    assert list(load(GENERICJOB, document).problems) == expected


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        pytest.param({"replicaSpecs": []}, "spec.replicaSpecs", id="no replica spec"),
        pytest.param({"cleanUpPolicy": "Some"}, "spec.cleanUpPolicy", id="clean-up policy"),
        pytest.param({"scheduler": {"t9kScheduler": {"priority": 101}}}, "spec.scheduler.t9kScheduler.priority"),
        pytest.param({"scheduler": {"t9kScheduler": {"priority": -1}}}, "spec.scheduler.t9kScheduler.priority"),
        pytest.param(
            {"replicaSpecs": [replicas(restartPolicy={"policy": "ExitCode"})]},
            "spec.replicaSpecs[0].restartPolicy.policy",
            id="there is no ExitCode here",
        ),
        pytest.param(
            {"replicaSpecs": [replicas(restartPolicy="OnFailure")]},
            "spec.replicaSpecs[0].restartPolicy",
            id="the siblings' plain restart policy",
        ),
        pytest.param(
            {"replicaSpecs": [replicas(restartPolicy={"limit": -1})]}, "spec.replicaSpecs[0].restartPolicy.limit"
        ),
        pytest.param({"replicaSpecs": [replicas(count=-1)]}, "spec.replicaSpecs[0].replicas", id="replicas below 0"),
        pytest.param({"replicaSpecs": [replicas("Worker")]}, "spec.replicaSpecs[0].type", id="upper case in a type"),
        pytest.param({"replicaSpecs": [replicas("a/b")]}, "spec.replicaSpecs[0].type", id="a slash in a type"),
        pytest.param({"replicaSpecs": [replicas("-a")]}, "spec.replicaSpecs[0].type", id="a dash first"),
        pytest.param({"replicaSpecs": [{"type": "worker"}]}, "spec.replicaSpecs[0].template", id="no template"),
        pytest.param({"replicaSpecs": [replicas(pod={"containers": []})]}, f"{POD}.containers", id="no container"),
        pytest.param(
            {"replicaSpecs": [replicas(pod={"containers": [container(args=["$(rank)", 5])]})]},
            f"{POD}.containers[0].args[1]",
            id="a number among the arguments",
        ),
        pytest.param({"service": {"ports": [{"name": "a"}]}}, "spec.service.ports[0].port", id="a port without number"),
        pytest.param({"service": {"ports": [{"port": 0}]}}, "spec.service.ports[0].port", id="port 0"),
        pytest.param({"runMode": {"pause": {"enabled": "yes"}}}, "spec.runMode.pause.enabled", id="yes is no boolean"),
    ],
)
def test_a_wrong_shape_is_refused_at_its_path(spec: Body, path: str) -> None:
    assert [problem.path for problem in load(GENERICJOB, manifest(**spec)).errors] == [path]


def test_all_problems_at_once_in_document_order() -> None:
    document = manifest(
        replicas("worker", 1, pod={"containers": [container(args=["$(replicas[ghost])"])]}),
        replicas("worker", 1),
        name="my.job",
        successRules=[{"ghost": [0]}],
        failureRules=[{"worker": [5]}],
        service={"ports": [{"port": 1}, {"port": 1}]},
        runMode={"debug": {"replicaSpecs": [{"type": "ghost"}]}},
    )

    assert [problem.path for problem in load(GENERICJOB, document).errors] == [
        "metadata.name",
        "spec.successRules[0]",
        "spec.failureRules[0].worker",
        "spec.service.ports",
        "spec.service.ports[0].name",
        "spec.service.ports[1].name",
        "spec.runMode.debug.replicaSpecs[0].type",
        "spec.replicaSpecs",
        f"{POD}.containers[0].args[0]",
    ]


def test_a_job_with_warnings_alone_is_run() -> None:
    document = manifest(replicas(restartPolicy={"policy": "Always"}), runMod={})
    loaded = load(GENERICJOB, document)

    assert [str(problem) for problem in loaded.problems] == [
        "spec.runMod: unknown field; did you mean `runMode`?",
        "spec.replicaSpecs[0].restartPolicy.limit: policy Always with limit 0 never restarts anything: "
        "give the number of restarts",
    ]
    assert (loaded.errors, loaded.job.invalid) == ((), "")


@pytest.mark.parametrize("field", ["enable", "enabled"])
@pytest.mark.parametrize("mode", ["debug", "pause"])
def test_both_spellings_are_known(mode: str, field: str) -> None:
    assert load(GENERICJOB, manifest(runMode={mode: {field: True}})).problems == ()


def test_defaults() -> None:
    document = manifest({"type": "worker", "template": {"spec": {"containers": [container()]}}})
    wire = load(GENERICJOB, document).wire
    one = wire.spec.replica_specs[0]

    assert (one.replicas, one.restart_policy.policy, one.restart_policy.limit) == (1, "OnFailure", 0)
    assert (wire.spec.clean_up_policy, wire.spec.scheduler, wire.spec.service, wire.spec.run_mode) == (
        "None",
        None,
        None,
        None,
    )


def test_a_job_without_a_namespace_is_in_default() -> None:
    document = manifest()
    del document["metadata"]["namespace"]
    driver = Driver(document)
    driver.go()

    assert driver.bodies["Pod", "demo-worker-0"]["metadata"]["namespace"] == "default"


def test_the_kind() -> None:
    assert (
        GENERICJOB.api_version,
        GENERICJOB.name,
        GENERICJOB.plural,
        GENERICJOB.singular,
        GENERICJOB.short_names,
    ) == (
        "batch.tensorstack.dev/v1beta1",
        "GenericJob",
        "genericjobs",
        "genericjob",
        ("gj",),
    )
    assert [(column.name, column.path, column.priority) for column in GENERICJOB.columns] == [
        ("Phase", ".status.phase", 0),
        ("Age", ".metadata.creationTimestamp", 0),
        ("Reason", ".status.trainwright.verdict.class", 0),
        ("Running", ".status.aggregate.running", 1),
        ("Succeeded", ".status.aggregate.succeeded", 1),
        ("Failed", ".status.aggregate.failed", 1),
        ("Message", ".status.trainwright.verdict.message", 1),
    ]


# -- whatever somebody writes ------------------------------------------------------------------------------------------

TEXTS = st.sampled_from(["", "a", "$(rank)", "$(service.worker[0].host)", "$(replicas[worker])", "$$(rank)", "$("])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["name", "image", "command", "args", "env", "value", "containers", "metadata", "labels", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
CONTAINERS = st.fixed_dictionaries(
    {"name": st.just("main")}, optional={"command": JSON, "args": JSON, "env": JSON, "resources": JSON, "image": JSON}
)
TEMPLATES = st.fixed_dictionaries(
    {
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(CONTAINERS, max_size=2) | JSON}, optional={"volumes": JSON}
        )
    },
    optional={"metadata": JSON},
)


@settings(deadline=None)
@given(TEMPLATES, st.sampled_from([{}, {"debug": {"enabled": True}}]), st.booleans())
def test_no_template_makes_us_stumble(template: Body, mode: Body, served: bool) -> None:
    """It is refused or it runs, and either way nothing raises and its status can be read back."""
    spec: Body = {"replicaSpecs": [{"type": "worker", "replicas": 2, "template": template}], "runMode": mode}
    driver = Driver(manifest() | {"spec": spec | ({"service": {}} if served else {})})
    driver.go()

    assert driver.status["phase"] == ("Failed" if driver.load().errors else "Pending")
    assert len(driver.names()) == (0 if driver.load().errors else 2)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["successRules", "failureRules", "service", "runMode", "scheduler"]), JSON))
def test_no_spec_makes_load_stumble(spec: Body) -> None:
    loaded = load(GENERICJOB, manifest(**spec))

    assert bool(loaded.errors) == bool(loaded.job.invalid)
    assert msgspec.json.encode([str(problem) for problem in loaded.problems])


RESUME = [{"type": "worker", "command": ["a"]}]


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        pytest.param({}, {}, True, id="nothing"),
        pytest.param({}, {"pause": {"enabled": True}}, True, id="paused without settings"),
        pytest.param({"pause": {"enabled": True}}, {"debug": {"enabled": True}}, True, id="pause taken away"),
        pytest.param(
            {"pause": {"resumeSpecs": RESUME}}, {"pause": {"enabled": True, "resumeSpecs": RESUME}}, True, id="kept"
        ),
        pytest.param({}, {"pause": {"resumeSpecs": RESUME}}, False, id="added"),
        pytest.param({"pause": {"resumeSpecs": RESUME}}, {}, False, id="removed"),
        pytest.param(
            {"pause": {"resumeSpecs": RESUME}}, {"pause": {"resumeSpecs": [{"type": "worker"}]}}, False, id="changed"
        ),
    ],
)
def test_resume_settings_cannot_be_changed(before: Body, after: Body, allowed: bool) -> None:
    stored, edited = (load(GENERICJOB, manifest(runMode=mode)).wire for mode in (before, after))

    found = GENERICJOB.check_edit(stored, edited)

    said = error("spec.runMode.pause.resumeSpecs", "cannot be changed after the job was created")
    assert found == (() if allowed else (said,))
