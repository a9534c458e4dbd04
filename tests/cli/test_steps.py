# SPDX-License-Identifier: Apache-2.0
"""Stories that GenericJob does not tell: stages, a time to live, whole-job restarts, an end before the beginning."""

from msgspec.structs import replace

from trainwright.cli.steps import Step, StepsOfJob
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.model.cause import CauseKind
from trainwright.model.job import Deadline, Job, Lifecycle, Restart, RestartScope
from trainwright.testing import factories

#: A kind without a phase of its own: the model's word is shown.
KIND = replace(GENERICJOB, render=lambda *_: {})
STAGED = (factories.role("ps"), factories.role("worker", 2, stage=1, awaits_running=True))


def story(job: Job) -> StepsOfJob:
    told = StepsOfJob(KIND, job)
    told.begin()
    return told


def test_stages_start_one_after_the_other() -> None:
    assert story(factories.job(*STAGED)).steps == [
        Step("the job is submitted", "Pending", creates=("Pod job-ps-0",)),
        Step("the pod runs", "Pending", creates=("Pod job-worker-0", "Pod job-worker-1")),
        Step("both pods run", "Running"),
    ]


def test_objects_are_those_of_every_stage() -> None:
    names = [body["metadata"]["name"] for body in story(factories.job(*STAGED)).objects]

    assert names == ["job-ps-0", "job-worker-0", "job-worker-1"]


def test_the_time_to_live_passes() -> None:
    told = story(factories.job(lifecycle=Lifecycle(ttl=60)))
    told.succeed({"worker": (0,)})

    assert told.world.gone
    assert told.steps[-1] == Step("60 s after its end", "Succeeded", "the job itself is removed")


def test_a_restart_of_the_whole_job_takes_all_pods_along() -> None:
    rule = Restart(frozenset({CauseKind.EXIT}), scope=RestartScope.JOB)
    told = story(factories.job(factories.role("a", restart=rule), factories.role("b")))
    told.end({"a": (0,)}, 1)

    assert told.steps[-2:] == [
        Step("a 0 exits with 1", "Restarting", deletes=("Pod job-b-0",)),
        Step("1 s later", "Restarting", "restart", ("Pod job-b-0", "Pod job-a-0"), ("Pod job-a-0",)),
    ]


def test_a_job_that_ends_before_it_begins_has_one_step() -> None:
    told = story(factories.job(lifecycle=Lifecycle(deadline=Deadline(0))))
    told.succeed({"worker": (0,)})

    assert told.steps == [Step("the job is submitted", "Failed", "it was active longer than its deadline")]


def test_a_success_that_decides_nothing_is_not_repeated() -> None:
    told = story(factories.job(factories.role("worker", 2)))
    told.succeed({"worker": (1,)})

    assert [step.event for step in told.steps] == ["the job is submitted", "both pods run", "worker 1 exits with 0"]
