# SPDX-License-Identifier: Apache-2.0
"""Containers that cannot be created: how long they are waited for where the operator has a word on it."""

import pytest

from trainwright.core.classify import classify_pod
from trainwright.core.reconcile import reconcile
from trainwright.model.child import Observed
from trainwright.model.ledger import Ledger, Phase, RoleLedger
from trainwright.model.plan import State
from trainwright.model.site import CreationRules, Site
from trainwright.testing.factories import NOW, container, job, later, pod, role

STUCK = pod(phase="Pending", started=NOW, containers=(container(waiting="ErrImagePull"),))


@pytest.mark.parametrize(
    ("creating", "own", "seconds", "expected"),
    [
        pytest.param(CreationRules(), None, 1e6, State.STARTING, id="waited for"),
        pytest.param(CreationRules(restart_period=60), None, 1e6, State.STARTING, id="a time alone says nothing"),
        pytest.param(CreationRules(0, fail=True), None, 0, State.FAILED, id="fails at the first sight of it"),
        pytest.param(CreationRules(60, fail=True), None, 60.9, State.STARTING, id="within its time"),
        pytest.param(CreationRules(60, fail=True), None, 61, State.FAILED, id="after its time"),
        pytest.param(CreationRules(0, fail=True), 90, 90.9, State.STARTING, id="the role's own word goes first"),
        pytest.param(CreationRules(), 90, 91, State.FAILED, id="and is enough"),
    ],
)
def test_patience(creating: CreationRules, own: float | None, seconds: float, expected: State) -> None:
    state, cause = classify_pod(STUCK, role(patience=own), None, Site(creating=creating), later(seconds))

    assert state is expected
    assert cause is not None


def test_it_is_looked_at_again_when_patience_is_over() -> None:
    ledger = Ledger(Phase.PENDING, roles=(RoleLedger("worker", reached=1),))
    site = Site(creating=CreationRules(60, fail=True))
    plan = reconcile(job(ledger=ledger), Observed(pods=(STUCK,)), site, later(1))

    assert plan.wake == later(61)
