# SPDX-License-Identifier: Apache-2.0
"""Debug mode, pause and resume, and edits that cannot be applied."""

from typing import Any

import pytest
from genericjob_driver import Driver, aggregate, condition, container, manifest, phases, replicas, restart_count

from trainwright.core.reconcile import reconcile
from trainwright.kinds.base import load
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.kinds.genericjob.checks import CEL_RULES
from trainwright.model.child import Observed
from trainwright.model.job import Body
from trainwright.model.ledger import Ledger
from trainwright.model.site import Site
from trainwright.testing import factories
from trainwright.testing.factories import NOW

PROBES: Body = {"livenessProbe": {}, "readinessProbe": {}, "startupProbe": {}}
MAIN = container(
    "main", command=["train"], args=["--epochs", "9"], env=[{"name": "RANK", "value": "$(rank)"}], **PROBES
)
SIDE = container("side", args=["watch"])
INIT = container("init", command=["download"], args=["data"])
POD = {"containers": [MAIN, SIDE], "initContainers": [INIT]}
BARE = container("main", env=[{"name": "RANK", "value": "0"}])


def made(mode: str = "", name: str = "worker-0", **settings: Any) -> Any:
    """The spec of a pod as it is made in that run mode."""
    run_mode: Body = {"runMode": {mode: settings}} if mode else {}
    driver = Driver(manifest(replicas("master", 1, pod=POD), replicas("worker", 1, pod=POD), **run_mode))
    driver.go()
    return driver.pod_spec(name)


# -- debug -------------------------------------------------------------------------------------------------------------


def test_immediate_mode_runs_the_template() -> None:
    main = MAIN | {"env": [{"name": "RANK", "value": "0"}]}
    assert made() == {"containers": [main, SIDE], "initContainers": [INIT], "restartPolicy": "Never"}


@pytest.mark.parametrize("name", ["master-0", "worker-0"])
def test_debug_by_default_sleeps_in_every_container(name: str) -> None:
    """Arguments and probes belong to the command that does not run; init containers run; variables are filled in."""
    assert made("debug", name, enabled=True) == {
        "containers": [BARE | {"command": ["sleep", "inf"]}, container("side", command=["sleep", "inf"])],
        "initContainers": [INIT],
        "restartPolicy": "Never",
    }


def test_debug_settings_of_one_type_leave_the_other_to_the_defaults() -> None:
    settings = [{"type": "worker", "skipInitContainer": True, "command": ["/usr/bin/sshd", "$(rank)"]}]

    assert made("debug", "worker-0", enabled=True, replicaSpecs=settings) == {
        "containers": [
            BARE | {"command": ["/usr/bin/sshd", "0"]},
            container("side", command=["/usr/bin/sshd", "0"]),
        ],
        "restartPolicy": "Never",
    }
    assert made("debug", "master-0", enabled=True, replicaSpecs=settings) == made("debug", "master-0", enabled=True)


@pytest.mark.parametrize(
    ("settings", "command", "init"),
    [
        pytest.param({}, ["sleep", "inf"], True, id="only the type"),
        pytest.param({"command": []}, ["sleep", "inf"], True, id="an empty command is the default"),
        pytest.param({"skipInitContainer": True}, ["sleep", "inf"], False, id="only skipInitContainer"),
        pytest.param({"skipInitContainer": False, "command": ["x"]}, ["x"], True, id="only the command"),
    ],
)
def test_debug_settings_one_by_one(settings: Any, command: Any, init: bool) -> None:
    spec = made("debug", enabled=True, replicaSpecs=[{"type": "worker", **settings}])

    assert [one["command"] for one in spec["containers"]] == [command, command]
    assert ("initContainers" in spec) == init


@pytest.mark.parametrize("settings", [{"enabled": False}, {}, {"enable": False}], ids=["false", "absent", "old false"])
def test_debug_that_is_not_enabled_changes_nothing(settings: Any) -> None:
    assert made("debug", replicaSpecs=[{"type": "worker", "command": ["x"]}], **settings) == made()


@pytest.mark.parametrize("settings", [{"enable": True}, {"enable": True, "enabled": False}], ids=["alone", "with new"])
def test_the_old_spelling_enables_debug(settings: Any) -> None:
    assert made("debug", **settings) == made("debug", enabled=True)


def test_debug_makes_services_and_the_environment() -> None:
    driver = Driver(manifest(service={"ports": [{"port": 22}]}, runMode={"debug": {"enabled": True}})).running()

    assert driver.names("Service") == driver.names()
    assert driver.status["phase"] == "Running"


def test_leaving_debug_reaches_only_new_pods() -> None:
    spec = replicas(pod={"containers": [MAIN]}, restartPolicy={"limit": 1})
    driver = Driver(manifest(spec, runMode={"debug": {"enabled": True}})).running()
    driver.edit(runMode={"debug": {"enabled": False}})
    driver.go()
    assert driver.pod("worker-0").metadata.deletion_timestamp is None

    driver.fail_and_restart("worker-1")

    assert driver.pod_spec("worker-0")["containers"][0]["command"] == ["sleep", "inf"]
    assert driver.pod_spec("worker-1")["containers"][0]["command"] == ["train"]


# -- pause -------------------------------------------------------------------------------------------------------------

RESUME = [{"type": "worker", "skipInitContainer": True, "command": ["/usr/bin/sshd"], "args": ["-D", "$(rank)"]}]


def paused(**spec: Any) -> Driver:
    """A job of a master and two workers that ran and has been paused; its pods are gone."""
    document = manifest(replicas("master", 1, pod=POD), replicas("worker", 2, pod=POD), **spec)
    driver = Driver(document).running()
    driver.pause()
    driver.go()
    driver.reap()
    driver.go()
    return driver


def resumed(driver: Driver) -> Driver:
    driver.pause(enabled=False)
    driver.go()
    driver.start_all()
    return driver


def test_created_paused_makes_nothing() -> None:
    driver = Driver(manifest(service={}, runMode={"pause": {"enabled": True}}))
    status = driver.go()

    assert driver.truth == {}
    assert (status["phase"], status["aggregate"]) == ("Paused", aggregate(deleted=4))
    assert driver.plans[-1].wake is None


def test_the_old_spelling_enables_pause() -> None:
    driver = Driver(manifest(runMode={"pause": {"enable": True}}))

    assert driver.go()["phase"] == "Paused"


def test_pause_wins_over_debug() -> None:
    document = manifest(runMode={"pause": {"enabled": True}, "debug": {"enabled": True}})
    driver = Driver(document)

    assert [str(problem) for problem in driver.load().problems] == [
        "spec.runMode: both pause and debug are enabled; the job stays paused"
    ]
    assert (driver.go()["phase"], driver.names()) == ("Paused", [])


def test_a_pause_removes_pods_with_their_normal_grace_and_services_at_once() -> None:
    driver = Driver(manifest(service={})).running()
    driver.pause()
    driver.catch_up()
    plan = driver.step()

    assert [(one.kind, one.force) for one in plan.deletes] == [("Pod", False)] * 4 + [("Service", False)] * 4
    assert [pod.metadata.deletion_grace_period_seconds for pod in driver.pods().values()] == [30] * 4


def test_paused_means_deleted_or_being_deleted() -> None:
    driver = Driver(manifest()).running()
    driver.pause()
    status = driver.go()

    assert (status["phase"], status["aggregate"]) == ("Paused", aggregate(deleted=4))
    assert len(driver.pods()) == 4
    assert driver.names() == []


def test_what_was_paused_is_still_told() -> None:
    driver = paused()

    assert [[one["uid"] for one in task["replicas"]] for task in driver.status["tasks"]] == [
        ["uid-1"],
        ["uid-2", "uid-3"],
    ]
    assert driver.status["tasks"][0]["replicas"][0] == {
        "name": "demo-master-0",
        "uid": "uid-1",
        "phase": "Deleted",
        "containers": [{"name": "main", "state": "Terminated"}],
    }


def test_a_paused_job_rests() -> None:
    driver = paused()
    driver.wait(100_000)
    driver.catch_up()
    plan = driver.step()

    assert (plan.empty, plan.wake, driver.truth) == (True, None, {})


def test_without_resume_specs_the_template_runs_again() -> None:
    driver = resumed(paused())

    assert driver.pod_spec("worker-0") == made(name="worker-0")
    assert driver.pod_spec("master-0") == made(name="master-0")


def test_resume_specs_change_the_main_container_of_their_type() -> None:
    """Of each type its own template, not that of the first; other containers stay as they are."""
    driver = resumed(paused(runMode={"pause": {"enabled": False, "resumeSpecs": RESUME}}))

    main = MAIN | {"command": ["/usr/bin/sshd"], "args": ["-D", "1"], "env": [{"name": "RANK", "value": "1"}]}
    assert driver.pod_spec("worker-1") == {"containers": [main, SIDE], "restartPolicy": "Never"}
    assert driver.pod_spec("master-0") == made(name="master-0")


@pytest.mark.parametrize(
    ("settings", "command", "args", "init"),
    [
        pytest.param({}, ["train"], ["--epochs", "9"], True, id="only the type"),
        pytest.param({"command": ["x"]}, ["x"], ["--epochs", "9"], True, id="command: the template's args stay"),
        pytest.param({"args": ["y"]}, ["train"], ["y"], True, id="args: the template's command stays"),
        pytest.param({"skipInitContainer": True}, ["train"], ["--epochs", "9"], False, id="skipInitContainer"),
        pytest.param({"command": [], "args": []}, ["train"], ["--epochs", "9"], True, id="empty is not given"),
    ],
)
def test_resume_settings_one_by_one(settings: Any, command: Any, args: Any, init: bool) -> None:
    mode = {"pause": {"enabled": False, "resumeSpecs": [{"type": "worker", **settings}]}}
    spec = resumed(paused(runMode=mode)).pod_spec("worker-0")

    assert (spec["containers"][0]["command"], spec["containers"][0]["args"]) == (command, args)
    assert ("initContainers" in spec) == init


def test_before_the_first_pause_resume_specs_are_not_in_force() -> None:
    mode = {"pause": {"enabled": False, "resumeSpecs": RESUME}}
    driver = Driver(manifest(replicas(pod=POD, restartPolicy={"limit": 1}), runMode=mode)).running()
    driver.fail_and_restart("worker-0")

    assert driver.pod_spec("worker-0") == made(name="worker-0")


def test_the_first_start_of_a_job_created_paused_is_a_resume() -> None:
    driver = Driver(manifest(replicas(pod=POD), runMode={"pause": {"enabled": True, "resumeSpecs": RESUME}}))
    driver.go()
    driver.pause(enabled=False)
    status = driver.go()

    assert status["phase"] == "Resuming"
    assert driver.pod_spec("worker-0")["containers"][0]["command"] == ["/usr/bin/sshd"]


def test_resumed_settings_stay_in_force_for_later_restarts() -> None:
    mode = {"pause": {"enabled": False, "resumeSpecs": RESUME}}
    document = manifest(replicas(pod=POD, restartPolicy={"limit": 9}), runMode=mode)
    driver = Driver(document).running()
    driver.pause()
    driver.go()
    driver.reap()
    resumed(driver)
    driver.fail_and_restart("worker-0")
    driver.evict("demo-worker-1")
    driver.settle()

    for name in ("worker-0", "worker-1"):
        assert driver.pod_spec(name)["containers"][0]["command"] == ["/usr/bin/sshd"]
        assert "initContainers" not in driver.pod_spec(name)


def test_a_pause_keeps_restart_counts_and_the_limit_goes_on() -> None:
    rules = [{"worker": [3]}]
    spec = replicas(restartPolicy={"limit": 2})
    driver = Driver(manifest(spec, successRules=rules, failureRules=rules)).running()
    driver.fail_and_restart("worker-0")
    driver.pause()
    driver.go()
    driver.reap()
    assert restart_count(driver.go()) == 1

    resumed(driver)
    driver.fail_and_restart("worker-0")
    driver.fail_and_restart("worker-0")

    assert (restart_count(driver.status), phases(driver.status)["worker-0"]) == (2, "Failed")


def test_a_pause_forgets_what_had_failed() -> None:
    rules = [{"worker": [3]}]
    driver = Driver(manifest(successRules=rules, failureRules=[{"worker": [0, 1]}])).running()
    driver.end("worker-0", code=1)
    driver.pause()
    driver.go()
    driver.reap()
    resumed(driver)

    assert driver.status["aggregate"] == aggregate(running=4)
    assert driver.end("worker-1", code=1)["phase"] == "Running"


def test_resuming_waits_for_pods_that_are_still_going() -> None:
    driver = Driver(manifest()).running()
    driver.pause()
    driver.go()
    driver.pause(enabled=False)
    driver.go()
    assert (driver.status["phase"], driver.names()) == ("Resuming", [])

    driver.reap()
    driver.go()

    assert driver.names() == [f"demo-worker-{rank}" for rank in range(4)]


def test_pausing_twice() -> None:
    driver = resumed(paused())
    driver.pause()
    driver.go()
    driver.reap()
    assert driver.go()["phase"] == "Paused"

    resumed(driver)

    assert driver.status["phase"] == "Running"
    assert driver.status["trainwright"]["resumes"] == 2


def test_services_come_back() -> None:
    driver = paused(service={})
    assert driver.names("Service") == []

    resumed(driver)

    assert driver.names("Service") == driver.names()


def test_resume_specs_are_immutable_by_a_rule_on_the_whole_spec() -> None:
    """A transition rule on the field itself would be skipped when the field comes or goes."""
    rules = dict(CEL_RULES)
    messages = [message for message in rules.values() if "cannot be changed" in message]
    rule = next(rule for rule, message in CEL_RULES if "cannot be changed" in message)

    assert messages == ["runMode.pause.resumeSpecs cannot be changed after creation"]
    assert rule == (
        "(has(self.runMode) && has(self.runMode.pause) && has(self.runMode.pause.resumeSpecs)"
        " ? self.runMode.pause.resumeSpecs : []) == "
        "(has(oldSelf.runMode) && has(oldSelf.runMode.pause) && has(oldSelf.runMode.pause.resumeSpecs)"
        " ? oldSelf.runMode.pause.resumeSpecs : [])"
    )


# -- manifests that got in although they cannot be right ---------------------------------------------------------------

GHOST = [{"ghost": [0]}]
NO_GHOST = "spec.successRules[0]: there is no replica type 'ghost'; the job has worker"


def test_a_new_job_that_cannot_be_run_fails_and_says_why() -> None:
    driver = Driver(manifest(successRules=GHOST))
    status = driver.go()

    assert (status["phase"], driver.truth) == ("Failed", {})
    assert condition(status, "Failed") == ("True", "Failed", f"The job is failed: {NO_GHOST}")
    assert condition(status, "Completed") == ("True", "Failed", f"The job is failed: {NO_GHOST}")


def test_such_a_job_stays_failed_when_it_is_mended() -> None:
    driver = Driver(manifest(successRules=GHOST))
    driver.go()
    driver.edit(successRules=[])

    assert (driver.go()["phase"], driver.names()) == ("Failed", [])


def test_a_running_job_goes_on_under_an_edit_that_cannot_be_applied() -> None:
    driver = Driver(manifest(replicas(restartPolicy={"limit": 5}))).running()
    driver.fail_and_restart("worker-1")
    driver.edit(successRules=GHOST)
    status = driver.go()

    assert (status["phase"], len(driver.names())) == ("Running", 4)
    assert condition(status, "ReplicaFailure") == ("True", "ErrorInPod", NO_GHOST)
    assert condition(status, "Running") == ("True", "-", "All pods are running normally.")

    driver.end("worker-0", code=1)
    assert driver.names() == [f"demo-worker-{rank}" for rank in range(4)]
    assert driver.plans[-1].empty

    driver.edit(successRules=[])
    status = driver.go()

    assert (restart_count(status), status["aggregate"]) == (1, aggregate(creating=1, running=3))
    assert condition(status, "ReplicaFailure")[2] == "Pod[demo-worker-0] exited with error code 1"


def test_an_edit_that_cannot_be_applied_does_not_hide_the_replicas() -> None:
    driver = Driver(manifest()).running()
    before = driver.status
    driver.edit(successRules=GHOST)
    status = driver.go()

    assert (status["aggregate"], status["tasks"]) == (before["aggregate"], before["tasks"])


@pytest.mark.parametrize("runs", [False, True], ids=["new", "running"])
def test_a_wrong_shape_is_reported_too(runs: bool) -> None:
    driver = Driver(manifest())
    if runs:
        driver.running()
    driver.edit(cleanUpPolicy="Everything")
    status = driver.go()

    assert status["phase"] == ("Running" if runs else "Failed")
    assert condition(status, "ReplicaFailure")[2].startswith("spec.cleanUpPolicy: ")
    assert len(driver.names()) == (4 if runs else 0)


def test_an_edit_that_cannot_be_applied_does_not_hide_what_became_of_a_finished_job() -> None:
    driver = Driver(manifest(successRules=[{"worker": [0]}])).running()
    before = driver.end("worker-0")
    driver.edit(successRules=GHOST)
    status = driver.go()

    assert (status["aggregate"], status["tasks"]) == (before["aggregate"], before["tasks"])


def test_an_edit_that_cannot_be_applied_leaves_a_finished_job_alone() -> None:
    driver = Driver(manifest(successRules=[{"worker": [0]}])).running()
    before = driver.end("worker-0")
    driver.edit(successRules=GHOST)
    status = driver.go()

    assert status["trainwright"] == before["trainwright"]
    assert driver.names() == [f"demo-worker-{rank}" for rank in range(4)]


def test_a_foreign_phase_does_not_make_the_job_invalid() -> None:
    document = manifest() | {"status": {"phase": "Initializing"}}

    assert load(GENERICJOB, document).errors == ()


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Running", "conditions": [{"type": "Running", "status": "True", "message": "x" * 5000}]},
        {"phase": 7},
        {"conditions": "none"},
        {"tasks": [{"replicas": 3}]},
        ["nothing"],
        None,
    ],
    ids=["a long message", "a number", "text", "another shape", "a list", "null"],
)
def test_what_others_left_in_the_status_is_no_mistake_of_the_user(status: Any) -> None:
    loaded = load(GENERICJOB, manifest() | {"status": status})

    assert (loaded.errors, loaded.job.ledger) == ((), Ledger())


@pytest.mark.parametrize(
    "ledger",
    [
        {"phase": "Dreaming"},
        {"phase": "Running", "failures": [{"role": "worker", "cause": {"why": "Tired"}}]},
        {"roles": "all of them"},
        7,
    ],
    ids=["a phase of tomorrow", "a cause of tomorrow", "another shape", "a number"],
)
def test_a_state_that_cannot_be_read_is_left_alone_and_told(ledger: Any) -> None:
    """A rolled back operator must neither fail the jobs of its successor nor start them anew."""
    document = manifest() | {"status": {"phase": "Running", "trainwright": ledger}}
    loaded = load(GENERICJOB, document)
    pods = tuple(factories.pod(rank, owners=(loaded.job.owner,)) for rank in range(4))

    plan = reconcile(loaded.job, Observed(pods=pods), Site(), NOW)
    status = GENERICJOB.render(loaded.status, loaded.job, plan.status, NOW)

    assert loaded.job.unreadable
    assert (plan.empty, plan.wake, plan.events) == (True, None, ())
    assert (status["phase"], "trainwright" in status) == ("Running", False)
    truth, reason, message = condition(status, "ReplicaFailure")
    assert (truth, reason) == ("True", "ErrorInPod")
    assert message.startswith("status.trainwright: cannot be read (")
    assert message.endswith(
        "): another version, or somebody else, wrote it; the job is left alone until it is put right"
    )
