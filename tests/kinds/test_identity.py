# SPDX-License-Identifier: Apache-2.0
"""The identity of a kind: group and kind. Stored objects contain the id, so the ids of this table never change."""

import re

from trainwright.cli.install import kinds_named
from trainwright.kinds.base import Kind, load
from trainwright.kinds.kubeflow_paddlejob import KUBEFLOW_PADDLEJOB
from trainwright.kinds.paddlejob import PADDLEJOB
from trainwright.kinds.registry import KINDS, find
from trainwright.runtime.ports import JOBS

IDS = {
    "GenericJob.batch.tensorstack.dev": "genericjob",
    "TFJob.kubeflow.org": "tfjob",
    "PaddleJob.batch.paddlepaddle.org": "paddlejob",
    "AITrainingJob.elasticdeeplearning.ai": "aitrainingjob",
    "XGBoostJob.kubeflow.org": "xgboostjob",
    "JAXJob.kubeflow.org": "jaxjob",
    "PyTorchJob.kubeflow.org": "pytorchjob",
    "PaddleJob.kubeflow.org": "paddlejob.kubeflow.org",
}
#: A kind with the name of another kind, in another group.
SECOND = KUBEFLOW_PADDLEJOB
#: What an API server accepts as the value of a label.
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def test_ids_do_not_change() -> None:
    assert {f"{kind.name}.{kind.group}": kind.id for kind in KINDS} == IDS


def test_every_kind_has_an_id_of_its_own_that_can_be_the_value_of_a_label() -> None:
    assert len({kind.id for kind in KINDS}) == len(KINDS) == len(JOBS)
    assert all(_LABEL_VALUE.fullmatch(kind.id) for kind in KINDS)


def test_a_kind_that_shares_its_name_is_told_apart_by_its_group() -> None:
    assert (SECOND.id, SECOND.title) == ("paddlejob.kubeflow.org", "PaddleJob.kubeflow.org")
    assert SECOND.spellings == ("paddlejobs.kubeflow.org", "paddlejob.kubeflow.org")
    assert kinds_named(["paddlejob"]) == (PADDLEJOB,)
    assert kinds_named(["PaddleJob.kubeflow.org"]) == (SECOND,)
    assert find("kubeflow.org/v1", "PaddleJob") is SECOND
    assert find("batch.paddlepaddle.org/v1", "PaddleJob") is PADDLEJOB


def test_the_label_of_children_is_the_id() -> None:
    document = {"apiVersion": SECOND.api_version, "kind": SECOND.name, "metadata": {"name": "job"}, "spec": {}}
    kinds: tuple[Kind, ...] = (PADDLEJOB, SECOND)

    assert [load(kind, document).job.kind for kind in kinds] == ["paddlejob", "paddlejob.kubeflow.org"]


def test_no_two_kinds_have_a_spelling_in_common() -> None:
    spellings = [one.lower() for kind in KINDS for one in kind.spellings]

    assert len(spellings) == len(set(spellings))
    assert kinds_named(["tfjob.kubeflow.org"]) == kinds_named(["TFJobs"])
