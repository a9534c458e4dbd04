# SPDX-License-Identifier: Apache-2.0
"""Jobs of every kind that ended under another controller stay ended, whatever else that one left in their status."""

from typing import Any

import pytest

from trainwright.kinds.aitrainingjob import AITRAININGJOB
from trainwright.kinds.base import Kind, load
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.kinds.paddlejob import PADDLEJOB
from trainwright.kinds.tfjob import TFJOB
from trainwright.model.ledger import Phase

#: Go writes a time that nobody has set as null.
DONE = {"type": "Succeeded", "status": "True", "lastTransitionTime": None, "lastUpdateTime": None}
ENDS: dict[str, tuple[Kind, dict[str, Any]]] = {
    "AITrainingJob": (AITRAININGJOB, {"phase": "Succeed"}),
    "GenericJob": (GENERICJOB, {"phase": "Succeeded"}),
    "PaddleJob": (PADDLEJOB, {"phase": "Completed"}),
    "TFJob": (TFJOB, {"conditions": [DONE]}),
}
LEFT: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a time that nobody has set": {"startTime": None, "conditions": [DONE]},
    "an entry that is none": {"conditions": [None, 7, DONE]},
    "a time that is none": {"startTime": 7, "conditions": [DONE]},
    "what nobody knows": {"restarts": "many", "replicaStatuses": 7, "conditions": [DONE]},
}


@pytest.mark.parametrize("left", LEFT.values(), ids=LEFT)
@pytest.mark.parametrize(("kind", "end"), ENDS.values(), ids=ENDS)
def test_it_is_not_run_again(kind: Kind, end: dict[str, Any], left: dict[str, Any]) -> None:
    document = {"metadata": {"name": "demo", "uid": "1"}, "spec": {}, "status": left | end}
    document["status"] |= {"conditions": left["conditions"]} if "conditions" in left else {}

    assert load(kind, document).job.ledger.phase is Phase.SUCCEEDED
