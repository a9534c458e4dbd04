# SPDX-License-Identifier: Apache-2.0
"""`trainwright simulate`: what each kind does about each fault, and that the figures fit together."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from simulated import Body, Simulated, generic, paddle, tensorflow, training


@pytest.fixture
def simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Simulated:
    return Simulated(tmp_path, capsys)


DONE = "the job has succeeded: every replica that counts has succeeded; it succeeds when"


@pytest.mark.parametrize(
    ("manifest", "options", "expected"),
    [
        pytest.param(
            tensorflow(),
            ["--fail", "worker-1=137@30s"],
            [
                "30 fault: Worker-1 exits with code 137",
                "30 restart: Worker-1 is restarted (Killed); restarts have no limit",
                "30 phase: Restarting",
                "31 phase: Running",
                "31 pods: Worker-1 is created (attempt 1)",
                "36 pods: Worker-1 runs",
                "605 pods: Worker-0 succeeds",
                "605 phase: Succeeded",
                f"605 end: {DONE} Worker 0 succeeds",
            ],
            id="TFJob: ExitCode restarts after 137",
        ),
        pytest.param(
            tensorflow(),
            ["--fail", "worker-1=1@30s"],
            [
                "30 fault: Worker-1 exits with code 1",
                "30 phase: Failed",
                "30 end: the job has failed: Worker-1: container tensorflow exited with code 1; it fails when any"
                " PS fails, or any Worker fails",
            ],
            id="TFJob: ExitCode fails after 1",
        ),
        pytest.param(
            tensorflow("OnFailure", runPolicy={"backoffLimit": 2}),
            ["--fail", "worker-1=1@30s", "--fail", "worker-1=1@40s"],
            [
                "30 fault: Worker-1 exits with code 1",
                "30 restart: Worker-1 is restarted by the kubelet in the same pod",
                "30 budget: restarts inside pods count: 1 of 2 restarts of the job are used",
                "40 fault: Worker-1 exits with code 1",
                "50 restart: Worker-1 is restarted by the kubelet in the same pod",
                "50 phase: Failed",
                "50 end: the job has failed: Worker-1: container tensorflow exited with code 1; the restart limit"
                " (backoffLimit) of 2 is reached: 2 restarts count against it",
            ],
            id="TFJob: the kubelet restarts, and backoffLimit counts it",
        ),
        pytest.param(
            generic(1, limit=1),
            ["--fail", "worker-0=1@30s", "--fail", "worker-0=oom@1m"],
            [
                "30 fault: worker-0 exits with code 1",
                "30 restart: worker-0 is restarted (ProgramError): 1 of 1 restart of worker-0 is used",
                "31 pods: worker-0 is created (attempt 1)",
                "36 pods: worker-0 runs",
                "60 fault: worker-0 runs out of memory (exit code 137)",
                "60 phase: Failed",
                "60 end: the job has failed: worker-0: container main exited with code 137 (OOMKilled); it fails"
                " when any worker fails",
            ],
            id="GenericJob: the limit is used up",
        ),
        pytest.param(
            generic(2),
            ["--suspend", "20s+10s"],
            [
                "20 fault: a user suspends the job",
                "20 phase: Paused",
                "30 fault: a user resumes the job",
                "30 phase: Resuming",
                "30 pods: worker 0-1 are created (attempt 1)",
                "35 pods: worker 0-1 run",
                "35 phase: Running",
                "635 pods: worker 0-1 succeed",
                "635 phase: Succeeded",
                f"635 end: {DONE} every worker succeeds",
            ],
            id="GenericJob: suspended and resumed",
        ),
        pytest.param(
            generic(1),
            ["--preempt", "worker-0@20s", "--delete", "worker-0@1m", "--duration", "2m"],
            [
                "20 fault: worker-0 is preempted by the scheduler",
                "20 restart: worker-0 is restarted (Preempted); it uses no budget",
                "21 pods: worker-0 is created (attempt 1)",
                "26 pods: worker-0 runs",
                "60 fault: worker-0 is deleted by a user",
                "60 restart: worker-0 is created again; it uses no budget",
                "65 pods: worker-0 runs",
                "185 pods: worker-0 succeeds",
                "185 phase: Succeeded",
                f"185 end: {DONE} every worker succeeds",
            ],
            id="GenericJob: preempted, then deleted, at no cost",
        ),
        pytest.param(
            training(),
            ["--lose-node", "2@60s"],
            [
                "60 fault: node-2 stops answering, with trainer-0",
                "120 restart: the whole job (pserver-0 and trainer 0-1) is restarted (NodeLost):"
                " 1 of 2 restarts of pserver are used, 1 of 2 restarts of trainer are used",
                "120 phase: Terminating",
                "120 phase: Restarting",
                "121 pods: pserver-0 and trainer 0-1 are created (attempt 1)",
                "126 pods: pserver-0 and trainer 0-1 run",
                "126 phase: Running",
            ],
            id="AITrainingJob: a lost node restarts the whole job",
        ),
        pytest.param(
            training("Pod", edlPolicy="Auto", minReplicas=1, maxReplicas=2),
            ["--lose-node", "2@60s+5m", "--replicas-per-node", "1", "--duration", "never"],
            [
                "60 fault: node-2 stops answering, with trainer-0",
                "120 restart: trainer-0 is restarted (NodeLost); it uses no budget",
                "120 phase: Terminating",
                "120 phase: Restarting",
                "121 pods: trainer-0 is created (attempt 1)",
                "121 pods: trainer-0 finds no node with room",
                "151 restart: the whole role (trainer-0) is restarted (Resized); it uses no budget",
                "151 pods: trainer-0 is created (attempt 2)",
                "156 pods: trainer-0 runs",
                "156 phase: Running",
                "360 fault: node-2 answers again",
                "480 restart: the whole role (trainer 0-1) is restarted (Resized); it uses no budget",
                "480 phase: Restarting",
                "480 pods: trainer 0-1 are created (attempt 3)",
                "485 pods: trainer 0-1 run",
                "485 phase: Running",
            ],
            id="AITrainingJob: shrinks without room and grows when the node is back",
        ),
        pytest.param(
            paddle(),
            ["--fail", "worker-1=1@30s", "--lose-node", "1@60s"],
            [
                "30 fault: worker-1 exits with code 1",
                "30 restart: worker-1 is restarted by the kubelet in the same pod",
                "60 fault: node-1 stops answering, with worker-0",
                "120 restart: worker-0 is restarted (NodeLost); it uses no budget",
                "120 phase: Restarting",
                "121 pods: worker-0 is created (attempt 1)",
                "126 pods: worker-0 runs",
                "126 phase: Running",
            ],
            id="PaddleJob: elastic workers restart alone",
        ),
        pytest.param(
            paddle(2, elastic=False),
            ["--fail", "worker-1=101@30s", "--fail", "worker-0=1@2m"],
            [
                "30 fault: worker-1 exits with code 101",
                "30 restart: the whole job (worker 0-1) is restarted (ProgramError):"
                " 1 of 6 restarts of the job are used",
                "30 phase: Restarting",
                "31 pods: worker 0-1 are created (attempt 1)",
                "36 pods: worker 0-1 run",
                "36 phase: Running",
                "120 fault: worker-0 exits with code 1",
                "120 phase: Failed",
            ],
            id="PaddleJob: workers that know each other's addresses restart together",
        ),
        pytest.param(
            generic(2),
            ["--lose-node", "1@20s", "--evict", "worker@30s"],
            [
                "20 fault: node-1 stops answering, with worker-0",
                "30 fault: worker-1 is evicted by the kubelet",
                "30 fault: no kubelet can evict worker-0: the node does not answer",
                "30 restart: worker-1 is restarted (Evicted); it uses no budget",
            ],
            id="GenericJob: a kubelet evicts, unless its node is silent",
        ),
    ],
)
def test_the_timeline(simulate: Simulated, manifest: Body, options: list[str], expected: list[str]) -> None:
    assert simulate.lines(manifest, *options)[: len(expected)] == expected


def test_a_budget_that_refills(simulate: Simulated) -> None:
    manifest = tensorflow()
    manifest["metadata"]["annotations"] = {"trainwright.dev/restart-budget": "2/1h"}
    fails = ["--fail", "worker-1=137@30s", "--fail", "worker-1=137@10m", "--fail", "worker-1=137@11m"]
    lines = simulate.lines(manifest, *fails, "--duration", "worker=2h")
    restarts = [line for line in lines if "restart:" in line]

    budget = "of 2 restarts per 1h00m of trainwright.dev/restart-budget are used (the next one refills after"
    assert restarts == [
        f"30 restart: Worker-1 is restarted (Killed): 1 {budget} 30m00s of productive time)",
        f"600 restart: Worker-1 is restarted (Killed): 2 {budget} 20m37s of productive time)",
    ]
    assert lines[-1].startswith("660 end: the job has failed: Worker-1: container tensorflow")
    assert lines[-1].endswith(
        "; the restart budget for causes of the program, trainwright.dev/restart-budget: 2/1h, is used up"
    )


def test_a_restart_uses_a_budget_that_has_refilled_by_more_than_one_restart(simulate: Simulated) -> None:
    manifest = tensorflow()
    manifest["metadata"]["annotations"] = {"trainwright.dev/restart-budget": "2/1h"}
    fails = [word for at in ("1h", "1h10m", "1h50m") for word in ("--fail", f"worker-1=137@{at}")]
    lines = simulate.lines(manifest, *fails, "--duration", "worker=4h")

    restarts = [line.partition(": ")[2] for line in lines if "restart:" in line]
    assert [text.partition("(Killed)")[2].split()[1] for text in restarts] == ["1", "2", "2"]


def deadline() -> Body:
    return tensorflow(runPolicy={"activeDeadlineSeconds": 90, "ttlSecondsAfterFinished": 3600})


def test_a_deadline_and_a_time_to_live(simulate: Simulated) -> None:
    found = simulate.json(deadline())

    assert (found["end"]["result"], found["end"]["at"]) == ("Failed", 90)
    assert (found["end"]["verdict"]["reason"], found["end"]["verdict"]["class"]) == ("Deadline", "Deadline")
    assert found["end"]["verdict"]["at"] == "2026-11-15T12:01:30Z"
    assert (found["timeline"][-1]["what"], found["timeline"][-1]["at"]) == ("removed", 3690)


def test_the_events_have_the_words_of_the_kind(simulate: Simulated) -> None:
    events = [
        one["text"] for one in simulate.json(tensorflow(), "--fail", "worker-1=137@30s")["timeline"] if "reason" in one
    ]

    assert events == [
        "ExitedWithCode: Pod: default.demo-worker-1 exited with code 137",
        "TFJobRestarting: job demo is restarting because Worker replica(s) failed.",
        "TFJobSucceeded: TFJob default/demo successfully completed.",
    ]


ALL: list[Any] = [
    pytest.param(tensorflow(), ["--fail", "worker-1=137@30s", "--evict", "ps-0@2m"], id="TFJob"),
    pytest.param(generic(3), ["--fail", "worker=1@30s", "--suspend", "2m+30s"], id="GenericJob"),
    pytest.param(training(), ["--lose-node", "1@60s+2m", "--delete", "trainer-1@4m"], id="AITrainingJob"),
    pytest.param(paddle(), ["--fail", "worker-1=oom@30s", "--preempt", "worker-0@1m"], id="PaddleJob"),
]


@pytest.mark.parametrize(("manifest", "options"), ALL)
def test_a_simulation_is_the_same_each_time(simulate: Simulated, manifest: Body, options: list[str]) -> None:
    for form in ("text", "json", "svg"):
        assert simulate(manifest, "-o", form, *options) == simulate(manifest, "-o", form, *options)


@pytest.mark.parametrize(("manifest", "options"), ALL)
def test_the_figures_fit_together(simulate: Simulated, manifest: Body, options: list[str]) -> None:
    found = simulate.json(manifest, *options)
    time, attempts = found["time"], found["attempts"]

    assert time["productive"] + sum(time["lost"].values()) == pytest.approx(time["wall"])
    assert time["wall"] == pytest.approx(found["end"]["at"])
    assert [one["at"] for one in found["timeline"]] == sorted(one["at"] for one in found["timeline"])
    for before, after in pairwise(found["phases"]):
        assert before["end"] == after["start"]
    for one in attempts:
        times = [one["created"], one["started"], one["ended"]]
        known = [at for at in times if at is not None]
        assert known == sorted(known), one
        assert (one["ended"] is None) == (one["result"] in ("Pending", "Running")), one
    by_replica: dict[tuple[str, int], list[Body]] = {}
    for one in attempts:
        by_replica.setdefault((one["role"], one["index"]), []).append(one)
    for runs in by_replica.values():
        for before, after in pairwise(runs):
            assert before["ended"] <= after["created"], (before, after)
            order = [(one["attempt"], one["restart"]) for one in (before, after)]
            assert order == sorted(order) or after["restart"] == 0


def test_the_json_has_these_keys(simulate: Simulated) -> None:
    """Programs read them: a key may be added, but none may go or change its meaning."""
    found = simulate.json(generic(1, limit=1), "--fail", "worker-0=1@30s", "--fail", "worker-0=1@60s")

    assert set(found) == {
        *("file", "kind", "namespace", "name", "roles", "nodes", "startTime", "begun", "simulated", "timeline"),
        *("phases", "attempts", "budgets", "time", "end", "notes"),
    }
    assert found["roles"] == [{"name": "worker", "replicas": 1, "duration": 600}]
    restart = next(one for one in found["timeline"] if one["what"] == "restart")
    budget = {"owner": "Replica", "name": "worker-0", "used": 1, "limit": 1, "window": 0, "refill": 0}
    assert {key: value for key, value in restart.items() if key != "text"} == {
        "at": 30,
        "what": "restart",
        "replicas": {"worker": "0"},
        "scope": "Pod",
        "cause": "ProgramError",
        "budgets": [budget],
    }
    assert found["budgets"] == [budget]
    assert found["phases"] == [
        {"phase": "Pending", "start": 0, "end": 5},
        {"phase": "Running", "start": 5, "end": 60},
        {"phase": "Failed", "start": 60, "end": None},
    ]
    assert found["attempts"][0] == {
        "role": "worker",
        "index": 0,
        "attempt": 0,
        "restart": 0,
        "node": "node-1",
        "created": 0,
        "started": 5,
        "ended": 30,
        "result": "Failed",
        "detail": "exit code 1",
    }
    assert found["end"] == {
        "result": "Failed",
        "phase": "Failed",
        "at": 60,
        "because": "it fails when any worker fails",
        "verdict": {
            "decision": "Failed",
            "at": "2026-11-15T12:01:00Z",
            "reason": "Rule",
            "class": "ProgramError",
            "replica": "worker-0",
            "pod": "demo-worker-0",
            "attempt": 1,
            "container": "main",
            "node": "node-1",
            "code": 1,
            "message": "worker-0: container main exited with code 1",
            "action": "read the log of the replica",
        },
    }
    assert set(found["time"]) == {"wall", "productive", "lost", "goodput"}


def test_the_text(simulate: Simulated) -> None:
    code, out, err = simulate(generic(1), "--fail", "worker-0=1@30s")

    assert (code, err) == (0, "")
    assert "  worker: 1 replica, programs run for 10m00s\n  2 nodes; a pod starts in 5s\n" in out
    assert "     30s  fault      worker-0 exits with code 1\n" in out
    assert "  Result   Succeeded after 10m36s: every replica that counts has succeeded\n" in out
    assert "  Because  it succeeds when every worker succeeds\n" in out
    assert "  Budgets  1 of 3 restarts of worker-0 are used\n" in out
    assert "productive (98.3 %); lost: Start 5s, ProgramError 6s\n" in out


@pytest.mark.parametrize(
    ("options", "note"),
    [
        (["--until", "2m"], "The job has not ended after 2m00s (--until): it is Running."),
        (["--suspend", "1m"], "Nothing more happens after 1m00s: the job stays Paused."),
        (["--fail", "worker-0=1@1h"], "--fail worker-0=1@1h: no effect, because the job had ended before."),
        (["--duration", "never"], "Nothing more happens after 5s: the job stays Running."),
        (
            ["--set", "spec.runMode.pause.enabled=true"],
            "The job is suspended. --suspend 0s+10s resumes it after 10 seconds.",
        ),
    ],
)
def test_notes(simulate: Simulated, options: list[str], note: str) -> None:
    assert note in simulate.json(generic(), *options)["notes"]


def test_a_fault_of_a_replica_that_does_not_run_has_no_effect(simulate: Simulated) -> None:
    lines = simulate.lines(generic(), "--fail", "worker-1=1@2s")

    assert lines[0] == "2 fault: worker-1 is not running: no effect"
    assert lines[-1] == f"605 end: {DONE} every worker succeeds"


def test_a_failed_replica_that_is_not_restarted(simulate: Simulated) -> None:
    rules = [{"worker": [0]}]
    manifest = generic(policy="Never", successRules=rules, failureRules=rules)
    lines = simulate.lines(manifest, "--fail", "worker-1=1@30s")

    assert lines[:2] == [
        "30 fault: worker-1 exits with code 1",
        "30 pods: worker-1 is not restarted, and the job goes on",
    ]


def test_faults_that_change_nothing(simulate: Simulated) -> None:
    nodes = ["--lose-node", "1@4m", "--lose-node", "1@4m30s+1m", "--lose-node", "1@5m+2m"]
    lines = simulate.lines(generic(2), "--suspend", "1m+2m", "--suspend", "2m+10s", *nodes)

    assert [line for line in lines if "no effect" in line or "restart:" in line] == [
        "120 fault: a user suspends the job; it is already suspended: no effect",
        "180 fault: a user resumes the job; it is not suspended: no effect",
        "270 fault: node-1 already does not answer: no effect",
        "300 fault: node-1 already does not answer: no effect",
        "300 restart: worker-0 is restarted (NodeLost); it uses no budget",
        "420 fault: node-1 answers again already: no effect",
    ]


def test_a_suspended_manifest_can_be_resumed(simulate: Simulated) -> None:
    paused = generic(runMode={"pause": {"enabled": True}})
    assert simulate.json(paused, "--suspend", "0s+10s")["end"]["at"] == 615


def test_a_node_that_returns_soon_reports_what_has_ended(simulate: Simulated) -> None:
    lines = simulate.lines(generic(1), "--lose-node", "1@9m50s+30s")

    assert lines == [
        "590 fault: node-1 stops answering, with worker-0",
        "620 fault: node-1 answers again",
        "620 pods: worker-0 succeeds",
        "620 phase: Succeeded",
        f"620 end: {DONE} every worker succeeds",
    ]


def test_a_manifest_from_a_cluster_starts_from_the_beginning(simulate: Simulated) -> None:
    stored = generic()
    stored["metadata"] |= {"uid": "7", "resourceVersion": "9", "creationTimestamp": "2026-01-01T00:00:00Z"}
    stored["status"] = {"phase": "Succeeded", "trainwright": {"phase": "Succeeded"}}

    assert simulate.json(stored)["end"]["at"] == 605


def test_a_thousand_replicas(simulate: Simulated) -> None:
    found = simulate.json(generic(1000), "--fail", "worker=137@1m", "--lose-node", "7@3m")

    assert len(found["attempts"]) == 2001
    assert found["end"]["result"] == "Succeeded"
