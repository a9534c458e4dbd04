# SPDX-License-Identifier: Apache-2.0
"""Previews of jobs that no GenericJob can be: rules that nobody can fulfil."""

from types import SimpleNamespace

from msgspec.structs import replace

from trainwright.cli.plan import ENDLESS, UNMANAGED, preview
from trainwright.kinds.base import Loaded
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.model.rule import NEVER
from trainwright.testing import factories


def test_a_job_that_nobody_can_end_says_so() -> None:
    job = factories.job(success=NEVER, failure=NEVER)
    kind = replace(GENERICJOB, render=lambda *_: {})
    shown = preview("job.yaml", kind, Loaded(SimpleNamespace(spec=None), job, ()))

    assert shown.notes == [ENDLESS]
    assert shown.if_it_fails == []
    assert [step.phase for step in shown.steps] == ["Pending", "Running"]


def test_a_job_that_is_left_to_another_controller_says_so() -> None:
    job = factories.job(unmanaged=True)
    kind = replace(GENERICJOB, render=lambda *_: {})
    shown = preview("job.yaml", kind, Loaded(SimpleNamespace(spec=None), job, ()))

    assert shown.notes == [UNMANAGED]
    assert (shown.objects, shown.if_it_fails) == ([], [])
