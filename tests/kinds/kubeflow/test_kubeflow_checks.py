# SPDX-License-Identifier: Apache-2.0
"""What is refused and warned of in each kind of Kubeflow v1, and the same by the CEL rules of its CRD."""

from typing import Any

import pytest
from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings
from kubeflow_driver import FRAMEWORKS, Driver, manifest, policy

from trainwright.kinds.base import load
from trainwright.kinds.cel import CombinedRule
from trainwright.model.job import Body
from trainwright.model.problem import Problem

each = pytest.mark.parametrize("kind", FRAMEWORKS)
#: Every field of the elastic policy of a PyTorchJob that makes a variable, and these variables.
EVERY_ELASTIC_FIELD = {
    "rdzvId": "x",
    "rdzvConf": [{"key": "timeout", "value": "900"}],
    "standalone": True,
    "maxRestarts": 3,
}
ELASTIC_VARIABLES = ("PET_RDZV_ID", "PET_RDZV_CONF", "PET_STANDALONE", "PET_MAX_RESTARTS")


def problems(document: Body) -> list[Problem]:
    return list(load(FRAMEWORKS[document["kind"].lower()][0], document).problems)


def paths(document: Body) -> list[str]:
    return [problem.path for problem in problems(document) if not problem.warning]


@each
def test_a_plain_job_has_no_problem(kind: str) -> None:
    assert problems(manifest(kind)) == []


@each
def test_a_type_must_be_spelt_exactly(kind: str) -> None:
    """The original's webhook refuses other spellings, and the scale subresource needs the key `Worker`."""
    framework = FRAMEWORKS[kind][1]
    document = manifest(kind)
    document["spec"][framework.field]["worker"] = document["spec"][framework.field].pop("Worker")
    (problem,) = problems(document)

    assert problem.path == f"spec.{framework.field}.worker"
    assert (problem.nearest, problem.warning) == ("Worker", False)


@each
def test_a_container_must_have_the_name_of_the_framework(kind: str) -> None:
    document = manifest(kind)
    spec = document["spec"][FRAMEWORKS[kind][1].field]["Worker"]["template"]["spec"]
    spec["containers"][0]["name"] = "main"

    assert paths(document) == [f"spec.{FRAMEWORKS[kind][1].field}.Worker.template.spec.containers"]


@each
def test_a_container_must_have_an_image(kind: str) -> None:
    document = manifest(kind)
    del document["spec"][FRAMEWORKS[kind][1].field]["Worker"]["template"]["spec"]["containers"][0]["image"]

    assert paths(document) == [f"spec.{FRAMEWORKS[kind][1].field}.Worker.template.spec.containers[0].image"]


@each
def test_a_variable_that_the_controller_replaces_causes_a_warning(kind: str) -> None:
    document, framework = manifest(kind), FRAMEWORKS[kind][1]
    container = document["spec"][framework.field]["Worker"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": framework.variable_names[0], "value": "1"}, {"name": "MINE", "value": "1"}]
    (problem,) = problems(document)

    assert problem.warning
    assert problem.path.endswith("containers[0].env[0]")


#: The forms of a job of each kind, which together have every variable.
FORMS: dict[str, list[dict[str, Any]]] = {
    "jaxjob": [{"Worker": 2}],
    "xgboostjob": [{"Master": 1, "Worker": 1}],
    "pytorchjob": [{"Master": 1, "Worker": 1}, {"Worker": 1, "spec": {"elasticPolicy": EVERY_ELASTIC_FIELD}}],
    "paddlejob": [{"Master": 1, "Worker": 1}],
}


@each
def test_the_names_that_warn_are_those_of_the_variables(kind: str) -> None:
    """Every variable but PYTHONUNBUFFERED, which many manifests set too, and those that only elastic jobs have."""
    found: set[str] = set()
    for types in FORMS[kind]:
        driver = Driver(manifest(kind, **types))
        driver.go()
        found |= {name for pod in driver.names() for name in driver.env(pod)}

    quiet = {"PET_RDZV_ENDPOINT", "PET_RDZV_BACKEND", *ELASTIC_VARIABLES} if kind == "pytorchjob" else set()
    assert found == {"PYTHONUNBUFFERED", *FRAMEWORKS[kind][1].variable_names, *quiet}


MASTERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "missing": ({"Worker": 2}, ["spec.xgbReplicaSpecs.Master"]),
    "two": ({"Master": 2, "Worker": 2}, ["spec.xgbReplicaSpecs.Master.replicas"]),
    "zero": ({"Master": 0, "Worker": 2}, ["spec.xgbReplicaSpecs.Master.replicas"]),
    "alone": ({"Master": 1}, []),
    "not given": ({"Master": None, "Worker": 1}, []),
}


@pytest.mark.parametrize(("types", "expected"), MASTERS.values(), ids=MASTERS)
def test_an_xgboostjob_has_one_master(types: dict[str, Any], expected: list[str]) -> None:
    assert paths(manifest("xgboostjob", **types)) == expected


PYTORCH_TYPES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no master": ({"Worker": 2}, []),
    "two masters": ({"Master": 2, "Worker": 2}, ["spec.pytorchReplicaSpecs.Master.replicas"]),
    "zero masters": ({"Master": 0, "Worker": 2}, ["spec.pytorchReplicaSpecs.Master.replicas"]),
    "only a master": ({"Master": 1}, []),
    "replicas not given": ({"Master": None, "Worker": None}, []),
    "zero workers": ({"Master": 1, "Worker": 0}, ["spec.pytorchReplicaSpecs.Worker.replicas"]),
}


@pytest.mark.parametrize(("types", "expected"), PYTORCH_TYPES.values(), ids=PYTORCH_TYPES)
def test_a_pytorchjob_has_at_most_one_master_and_no_empty_type(types: dict[str, Any], expected: list[str]) -> None:
    assert paths(manifest("pytorchjob", **types)) == expected


#: The fields of a PyTorchJob with two workers, the paths of errors, and the paths of warnings.
ELASTIC: dict[str, tuple[Body, list[str], list[str]]] = {
    "no bounds": ({"elasticPolicy": {}}, [], []),
    "bounds": ({"elasticPolicy": {"minReplicas": 1, "maxReplicas": 2}}, [], []),
    "bounds that exclude each other": (
        {"elasticPolicy": {"minReplicas": 3, "maxReplicas": 1}},
        ["spec.elasticPolicy.minReplicas"],
        [],
    ),
    "fewer workers": (
        {"elasticPolicy": {"minReplicas": 3, "maxReplicas": 4}},
        [],
        ["spec.pytorchReplicaSpecs.Worker.replicas"],
    ),
    "more workers": ({"elasticPolicy": {"maxReplicas": 1}}, [], ["spec.pytorchReplicaSpecs.Worker.replicas"]),
    "old place": ({"elasticPolicy": {"nProcPerNode": 2}}, [], ["spec.elasticPolicy.nProcPerNode"]),
    "both places": (
        {"elasticPolicy": {"nProcPerNode": 2}, "nprocPerNode": "2"},
        ["spec.elasticPolicy.nProcPerNode"],
        ["spec.elasticPolicy.nProcPerNode"],
    ),
    "processes": ({"nprocPerNode": "2"}, [], []),
    "a word for processes": ({"nprocPerNode": "gpu"}, [], []),
    "another word for processes": ({"nprocPerNode": "gpus"}, [], ["spec.nprocPerNode"]),
    "no settings": ({"elasticPolicy": {"rdzvConf": []}}, [], []),
}


@pytest.mark.parametrize(("spec", "errors", "warnings"), ELASTIC.values(), ids=ELASTIC)
def test_the_elastic_policy_of_a_pytorchjob(spec: Body, errors: list[str], warnings: list[str]) -> None:
    document = manifest("pytorchjob", spec, Worker=2)

    assert paths(document) == errors
    assert [problem.path for problem in problems(document) if problem.warning] == warnings


def test_the_warning_of_a_deprecated_field_is_that_of_the_original() -> None:
    (problem,) = problems(manifest("pytorchjob", {"elasticPolicy": {"nProcPerNode": 2}}, Worker=2))

    assert problem.message == "spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead"


def test_an_elastic_policy_needs_workers() -> None:
    assert paths(manifest("pytorchjob", {"elasticPolicy": {}}, Master=1)) == ["spec.pytorchReplicaSpecs.Worker"]


@pytest.mark.parametrize("types", [{"Worker": 2}, {"Master": 1}], ids=str)
def test_the_elastic_policy_of_a_paddlejob_has_no_effect_and_says_so(types: dict[str, Any]) -> None:
    """The original's defaulter crashes if there is no worker."""
    (problem,) = problems(manifest("paddlejob", {"elasticPolicy": {}}, **types))

    assert (problem.path, problem.warning) == ("spec.elasticPolicy", True)


@pytest.mark.parametrize(
    ("kind", "leader"),
    [("jaxjob", "Worker"), ("xgboostjob", "Master"), ("pytorchjob", "Master"), ("paddlejob", "Worker")],
)
def test_always_for_the_type_that_decides_causes_a_warning(kind: str, leader: str) -> None:
    (problem,) = [one for one in problems(manifest(kind, restart="Always")) if one.warning]

    assert problem.path == f"spec.{FRAMEWORKS[kind][1].field}.{leader}.restartPolicy"


# -- the same as CEL ---------------------------------------------------------------------------------------------------

_ENV = cel.NewEnv(
    variables={"self": cel.Type.DYN, "oldSelf": cel.Type.DYN},
    extensions=[ext_optional.ExtOptional(), ext_strings.ExtStrings()],
)


def refused(kind: str, spec: Body, before: Body | None = None) -> bool:
    """Whether a rule of the CRD refuses this spec, with the defaults that an API server has written."""

    def stored(one: Body) -> Body:
        field = FRAMEWORKS[kind][1].field
        return one | {field: {name: {"replicas": 1} | part for name, part in one[field].items()}}

    data = {"self": stored(spec), "oldSelf": stored(before or spec)}
    rules = [one.rule if isinstance(one, CombinedRule) else one[0] for one in FRAMEWORKS[kind][0].cel]
    return not all(_ENV.compile(rule).eval(data=data).value() for rule in rules)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("jaxjob", {"Worker": 2}),
    ("jaxjob", {"Worker": None}),
    ("jaxjob", {"Worker": 0}),
    ("jaxjob", {"Master": 1, "Worker": 1}),
    ("jaxjob", {"worker": 1}),
    *(("xgboostjob", types) for types, _ in MASTERS.values()),
    ("xgboostjob", {"Master": 1, "worker": 1}),
    ("xgboostjob", {"Master": 1, "PS": 1}),
    *(("pytorchjob", types) for types, _ in PYTORCH_TYPES.values()),
    ("pytorchjob", {"Worker": 0}),
    ("pytorchjob", {"master": 1}),
    ("pytorchjob", {"Master": 1, "spec": {"elasticPolicy": {}}}),
    *(("pytorchjob", {"Worker": 2, "spec": spec}) for spec, _, _ in ELASTIC.values()),
    ("paddlejob", {"Master": 3, "Worker": 2}),
    ("paddlejob", {"Master": 2}),
    ("paddlejob", {"Master": 0, "Worker": 0}),
    ("paddlejob", {"Worker": 1, "spec": {"elasticPolicy": {}}}),
    ("paddlejob", {"Chief": 1}),
]


@pytest.mark.parametrize(("kind", "types"), CASES, ids=str)
def test_the_rules_of_the_crd_agree_with_the_checks(kind: str, types: dict[str, Any]) -> None:
    document = manifest(kind, **types)

    assert refused(kind, document["spec"]) == bool(paths(document))


@each
def test_the_rules_of_the_crd_keep_the_manager(kind: str) -> None:
    before, after = (
        manifest(kind, policy(managedBy=manager))["spec"]
        for manager in ("kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue")
    )

    assert refused(kind, after, before)
    assert not refused(kind, before, before)


@each
def test_scale_and_suspend(kind: str) -> None:
    value, framework = FRAMEWORKS[kind]
    document = manifest(kind)

    for role in ("Worker", "worker"):  # people need not spell it as a manifest must
        assert value.scale(document, role, 3) == {"spec": {framework.field: {"Worker": {"replicas": 3}}}}
    assert isinstance(value.scale(document, "PS", 3), Problem)
    assert value.suspend(document, True) == {"spec": {"runPolicy": {"suspend": True}}}
