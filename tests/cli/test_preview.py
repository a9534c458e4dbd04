# SPDX-License-Identifier: Apache-2.0
"""Previews of jobs that no GenericJob can be: rules that nobody can fulfil."""

from types import SimpleNamespace

from msgspec.structs import replace

from trainwright.cli.plan import ELSEWHERE, ENDLESS, look
from trainwright.kinds.base import Loaded
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.model.rule import NEVER
from trainwright.testing import factories


def test_a_job_that_nobody_can_end_says_so() -> None:
    job = factories.job(success=NEVER, failure=NEVER)
    kind = replace(GENERICJOB, render=lambda *_: {})
    preview = look("job.yaml", kind, Loaded(SimpleNamespace(spec=None), job, ()))

    assert preview.notes == [ENDLESS]
    assert preview.if_it_fails == []
    assert [step.phase for step in preview.steps] == ["Pending", "Running"]


def test_a_job_that_is_left_to_another_controller_says_so() -> None:
    job = factories.job(unmanaged=True)
    kind = replace(GENERICJOB, render=lambda *_: {})
    preview = look("job.yaml", kind, Loaded(SimpleNamespace(spec=None), job, ()))

    assert preview.notes == [ELSEWHERE]
    assert (preview.objects, preview.if_it_fails) == ([], [])
