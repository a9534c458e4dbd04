# SPDX-License-Identifier: Apache-2.0
"""`trainwright plan` as people run it: exact text for small manifests, and every shipped example."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainwright.cli.main import run

EXAMPLES = Path(__file__).parents[2] / "examples" / "genericjob"
UID = "00000000-0000-0000-0000-000000000000"

Capture = pytest.CaptureFixture[str]


def manifest(spec: str = "", *, workers: str = "replicas: 2", name: str = "job") -> str:
    """A job of workers, with more lines of its spec, and more of its workers."""
    return f"""\
apiVersion: batch.tensorstack.dev/v1beta1
kind: GenericJob
metadata:
  name: {name}
spec:
  {spec}
  replicaSpecs:
    - type: worker
      {workers}
      template:
        spec:
          containers:
            - name: main
              image: busybox
              command: [train]
"""


@pytest.fixture
def plan(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `plan` on a text, in its own directory; the exit code, and both outputs."""

    def go(text: str, *options: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        Path("job.yaml").write_text(text)
        code = run(["plan", "job.yaml", *options])
        return code, *capsys.readouterr()

    return go


def steps(out: str) -> list[str]:
    """The lines under `Steps`, with blanks made single."""
    lines = out.split("\n  Steps\n")[1].split("\n")
    return [" ".join(line.split()) for line in lines if line.startswith("    ")]


# -- the whole text ------------------------------------------------------------------------------------------------

FULL = """\
apiVersion: v1
kind: Secret
metadata: {name: token}
---
apiVersion: batch.tensorstack.dev/v1beta1
kind: GenericJob
metadata:
  name: full
  namespace: lab
spec:
  service:
    ports:
      - {name: http, port: 2222}
      - {name: web, port: 80}
  scheduler:
    t9kScheduler: {queue: night, priority: 7}
  successRules:
    - {"master": [0], "worker": [0, 1, 2, 4]}
    - {"master": ["0"]}
  failureRules:
    - {"worker": [1]}
  cleanUpPolicy: Unfinished
  replicaSpecs:
    - type: master
      restartPolicy: {policy: Never}
      template:
        spec:
          initContainers:
            - name: fetch
              image: curl
              command: [curl, -o, /data, "http://$(service.worker[0].host):$(service.port[http])/a b"]
          containers:
            - name: main
              image: busybox
              args: [--replicas, "$(replicas[worker])", $(HOME), $$(rank)]
              resources: {limits: {nvidia.com/gpu: 1, cpu: "2"}}
              envFrom:
                - configMapRef: {name: settings}
                - secretRef: {name: keys}
                  prefix: KEY_
              env:
                - {name: WHO, value: $(type) $(rank)}
                - {name: EMPTY}
                - {name: TOKEN, valueFrom: {secretKeyRef: {name: token, key: token}}}
                - {name: MODE, valueFrom: {configMapKeyRef: {name: settings, key: mode}}}
                - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
                - {name: CORES, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
                - {name: ODD, value: "a\\tb"}
            - name: proxy
              image: envoy
    - type: worker
      replicas: 5
      restartPolicy: {policy: OnFailure, limit: 3}
      template:
        spec:
          containers:
            - name: main
              image: python
              command:
                - python3
                - -c
                - |
                  print("$(rank)")
                  exit()
"""

TEXT = """\
GenericJob lab/full  (job.yaml)
  Creates 6 pods, 6 services, 1 pod group
    PodGroup full
      minMember 6, queue night, priority 7
    Pod full-master-0
      scheduler t9k-scheduler
      init container fetch, image curl
        command  curl -o /data 'http://full-worker-0:2222/a b'
      container main, image busybox
        args     --replicas 5 $(HOME) $$(rank)
        limits   nvidia.com/gpu 1, cpu 2
        env      * <from config map settings>
        env      KEY_* <from secret keys>
        env      WHO=master 0
        env      EMPTY=
        env      TOKEN=<from secret token/token>
        env      MODE=<from config map settings/mode>
        env      NODE=<field spec.nodeName>
        env      CORES=<resource limits.cpu>
        env      ODD='a\\tb'
      container proxy, image envoy
    Pod full-worker-0
      scheduler t9k-scheduler
      container main, image python
        command  python3 -c |
                 | print("0")
                 | exit()
    Pod full-worker-1
      scheduler t9k-scheduler
      container main, image python
        command  python3 -c |
                 | print("1")
                 | exit()
    Pod full-worker-2
      scheduler t9k-scheduler
      container main, image python
        command  python3 -c |
                 | print("2")
                 | exit()
    … and 2 more
    Service full-master-0
      ports    http 2222, web 80
    Service full-worker-0 … full-worker-4
      ports    http 2222, web 80
  Rules
    succeeds         when master 0 and worker 0-2,4 succeed, or master 0 succeeds
    fails            when worker 1 fails, or success is impossible
    restarts master  never, except after preemption or a lost node
    restarts worker  after a failure, at most 3 of each replica; preemption and lost nodes do not count
    clean-up         removes unfinished pods, keeps finished ones for their logs
  Steps
    the job is submitted                   → Pending    creates 6 pods, 6 services, 1 pod group
    all 6 pods run                         → Running
    master 0 and worker 0-2,4 exit with 0  → Succeeded  rule {"master":[0],"worker":[0,1,2,4]}
    clean-up                               → Succeeded  removes 1 pod, 1 service, 1 pod group
  If it fails instead
    worker 1 exits with 1  → Running
    1 s later              → Running  restart: removes 1 pod, creates 1 pod
  This plan is for a cluster with scheduler.tensorstack.dev/v1beta1; on other clusters the pods start one by one.

"""


def test_the_whole_text(plan: Any) -> None:
    code, out, err = plan(FULL)

    assert (code, err) == (0, "job.yaml:1: skipped: v1 Secret default/token\n")
    assert out == TEXT


# -- steps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "workers", "expected"),
    [
        pytest.param(
            "",
            "replicas: 1",
            [
                "the job is submitted → Pending creates 1 pod",
                "the pod runs → Running",
                "worker 0 exits with 0 → Succeeded every worker succeeds",
                "worker 0 exits with 1 → Failed any worker fails",
            ],
            id="one pod",
        ),
        pytest.param(
            "cleanUpPolicy: All",
            "replicas: 2",
            [
                "the job is submitted → Pending creates 2 pods",
                "both pods run → Running",
                "worker 0-1 exit with 0 → Succeeded every worker succeeds",
                "clean-up → Succeeded removes 2 pods",
                "worker 0 exits with 1 → Failed any worker fails",
                "clean-up → Failed removes 2 pods",
            ],
            id="clean-up",
        ),
        pytest.param(
            "runMode: {pause: {enabled: true}}",
            "replicas: 2",
            [
                "the job is submitted → Paused",
                "it is resumed → Resuming creates 2 pods",
                "both pods run → Running",
                "worker 0-1 exit with 0 → Succeeded every worker succeeds",
                "worker 0 exits with 1 → Failed any worker fails",
            ],
            id="paused",
        ),
        pytest.param(
            "runMode: {debug: {enabled: true}}",
            "replicas: 2",
            ["the job is submitted → Pending creates 2 pods", "both pods run → Running"],
            id="debug",
        ),
        pytest.param(
            'successRules: [{"worker": [2]}, {"worker": [0]}]',
            "replicas: 3",
            [
                "the job is submitted → Pending creates 3 pods",
                "all 3 pods run → Running",
                'worker 2 exits with 0 → Succeeded rule {"worker":[2]}',
                "worker 0 exits with 1 → Failed any worker fails",
            ],
            id="the first rule decides",
        ),
        pytest.param(
            'failureRules: [{"worker": [0, 2]}]',
            "replicas: 3\n      restartPolicy: {limit: 1}",
            [
                "the job is submitted → Pending creates 3 pods",
                "all 3 pods run → Running",
                "worker 0-2 exit with 0 → Succeeded every worker succeeds",
                "worker 0,2 exit with 1 → Running",
                "1 s later → Running restart: removes 2 pods, creates 2 pods",
            ],
            id="the budget of each replica",
        ),
        pytest.param(
            "",
            "restartPolicy: {policy: Always, limit: 1}",
            [
                "the job is submitted → Pending creates 1 pod",
                "the pod runs → Running",
                "worker 0 exits with 0 → Running",
                "1 s later → Running restart: removes 1 pod, creates 1 pod",
                "the pod runs → Running",
                "worker 0 exits with 0 → Succeeded every worker succeeds",
                "worker 0 exits with 1 → Running",
                "1 s later → Running restart: removes 1 pod, creates 1 pod",
            ],
            id="restarted after success",
        ),
    ],
)
def test_steps(plan: Any, spec: str, workers: str, expected: list[str]) -> None:
    code, out, _ = plan(manifest(spec, workers=workers))

    assert code == 0
    assert steps(out) == expected


def test_debug_mode_says_that_nothing_ends_by_itself(plan: Any) -> None:
    _, out, _ = plan(manifest("runMode: {debug: {enabled: true}}"))

    assert "command  sleep inf\n" in out
    assert out.endswith("  Debug mode replaces the commands, so the job does not end until you end it.\n\n")
    assert "If it fails" not in out


def test_a_paused_job_shows_what_it_creates_once_it_is_resumed(plan: Any) -> None:
    _, out, _ = plan(manifest("runMode: {pause: {enabled: true, resumeSpecs: [{type: worker, command: [go, again]}]}}"))

    assert "  Creates, once it is resumed, 2 pods\n    Pod job-worker-0 … job-worker-1\n" in out
    assert "command  go again\n" in out


def test_restarting_success_without_end_is_said(plan: Any) -> None:
    _, out, _ = plan(manifest(workers="restartPolicy: {policy: Always, limit: 9}"))

    assert "Replicas are restarted even after success: the job ends only when its restarts are used up." in out


def test_a_thousand_replicas_are_abbreviated(plan: Any) -> None:
    code, out, _ = plan(manifest(workers="replicas: 1000").replace("[train]", "[train, $(rank)]"))

    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("    Pod")] == [
        "    Pod job-worker-0",
        "    Pod job-worker-1",
        "    Pod job-worker-2",
    ]
    assert "    … and 997 more\n" in out
    assert "worker 0-999 exit with 0  → Succeeded" in out
    assert len(out.splitlines()) < 30


def test_replicas_that_are_alike_are_shown_once(plan: Any) -> None:
    _, out, _ = plan(manifest(workers="replicas: 1000"))

    assert [line for line in out.splitlines() if "job-worker" in line] == ["    Pod job-worker-0 … job-worker-999"]


def test_many_rules_are_abbreviated(plan: Any) -> None:
    rules = ", ".join(f'{{"worker": [{rank}]}}' for rank in range(100))
    _, out, _ = plan(manifest(f"failureRules: [{rules}]", workers="replicas: 100"))

    assert "worker 5 fails, or 94 other rules are fulfilled, or success is impossible\n" in out


def test_what_a_terminal_should_not_be_sent_is_escaped(plan: Any) -> None:
    _, out, _ = plan(manifest().replace("[train]", '["\\e[31mred", "it\'s"]'))

    assert "command  '\\x1b[31mred' \"it's\"\n" in out


# -- json and yaml -------------------------------------------------------------------------------------------------


def test_json_is_complete(plan: Any) -> None:
    code, out, err = plan(manifest("cleanUpPolicy: All"), "-o", "json")
    found = json.loads(out)

    assert (code, err) == (0, "")
    assert list(found) == ["file", "kind", "namespace", "name", "objects", "rules", "steps", "ifItFails", "notes"]
    assert found["objects"][1] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "job-worker-1",
            "namespace": "default",
            "labels": {
                "genericjob": "job",
                "genericjob-replica": "job-worker-1",
                "tensorstack.dev/component": "genericjob",
                "tensorstack.dev/component-type": "user",
                "tensorstack.dev/owner-name": "job",
                "trainwright.dev/kind": "genericjob",
                "trainwright.dev/job-uid": UID,
                "trainwright.dev/role": "worker",
                "trainwright.dev/index": "1",
                "trainwright.dev/attempt": "0",
            },
            "ownerReferences": [
                {
                    "apiVersion": "batch.tensorstack.dev/v1beta1",
                    "kind": "GenericJob",
                    "name": "job",
                    "uid": UID,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "busybox", "command": ["train"]}],
        },
    }
    assert found["rules"] == {
        "succeeds": "when every worker succeeds",
        "fails": "when any worker fails",
        "restarts worker": "never (limit 0), except after preemption or a lost node",
        "clean-up": "removes all pods",
    }
    assert found["steps"] == [
        {"event": "the job is submitted", "phase": "Pending", "creates": ["Pod job-worker-0", "Pod job-worker-1"]},
        {"event": "both pods run", "phase": "Running"},
        {"event": "worker 0-1 exit with 0", "phase": "Succeeded", "because": "every worker succeeds"},
        {"event": "clean-up", "phase": "Succeeded", "deletes": ["Pod job-worker-0", "Pod job-worker-1"]},
    ]
    assert [step["phase"] for step in found["ifItFails"]] == ["Failed", "Failed"]


def test_yaml_says_the_same_without_aliases(plan: Any) -> None:
    _, told, _ = plan(FULL, "-o", "yaml")
    _, expected, _ = plan(FULL, "-o", "json")

    assert yaml.safe_load(told) == json.loads(expected)
    assert "&id" not in told


def test_all_thousand_replicas_are_in_the_json(plan: Any) -> None:
    _, out, _ = plan(manifest("service: {}", workers="replicas: 1000"), "-o", "json")
    found = json.loads(out)

    assert [len(found["objects"]), len(found["steps"][0]["creates"])] == [2000, 2000]


def test_a_plan_is_the_same_each_time_and_whatever_became_of_the_job(plan: Any) -> None:
    """A manifest taken from a cluster carries its past; the plan is for a job that is submitted now."""
    past = manifest().replace("metadata:\n", "metadata:\n  uid: real\n  deletionTimestamp: 2026-01-01T00:00:00Z\n", 1)
    status = "status: {phase: Succeeded, trainwright: {phase: Succeeded, resumes: 3}}\n"

    assert plan(past + status, "-o", "json") == plan(manifest(), "-o", "json")


def test_several_jobs_are_one_document_each(plan: Any) -> None:
    _, out, _ = plan(f"{manifest(name='one')}---\n{manifest(name='two')}", "-o", "yaml")

    assert [document["name"] for document in yaml.safe_load_all(out)] == ["one", "two"]


# -- namespace, refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        pytest.param(manifest(), [], "default", id="none"),
        pytest.param(manifest(), ["--namespace", "lab"], "lab", id="asked for"),
        pytest.param(FULL, [], "lab", id="its own"),
        pytest.param(FULL, ["-n", "lab"], "lab", id="both"),
    ],
)
def test_namespace(plan: Any, text: str, options: list[str], expected: str) -> None:
    _, out, _ = plan(text, "-o", "json", *options)
    found = json.loads(out)

    assert {found["namespace"], *(body["metadata"]["namespace"] for body in found["objects"])} == {expected}


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        pytest.param(
            FULL,
            ["-n", "other"],
            "job.yaml:1: skipped: v1 Secret default/token\n"
            "trainwright: job.yaml: document 2 is for namespace 'lab', not 'other'\n",
            id="against its word",
        ),
        pytest.param(
            manifest(),
            ["-n", "Not One"],
            "trainwright: 'Not One' is not a valid namespace: use lower-case letters, digits and dashes\n",
            id="no namespace",
        ),
        pytest.param(
            "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n",
            [],
            "job.yaml:1: skipped: v1 Secret default/a\ntrainwright: the files contain no job; expected at least one\n",
            id="no job",
        ),
        pytest.param("a: b: c", [], "trainwright: job.yaml:1:5: document 1: not valid YAML: ", id="no yaml"),
        pytest.param("apiVersion: v9\nkind: Job\n", [], "job.yaml:2: error: document 1: kind: ", id="unknown kind"),
        pytest.param(
            "apiVersion: batch.tensorstack.dev/v1beta1\nkind: GenericJob\nmetadata: 7\n",
            ["-n", "lab"],
            "job.yaml:1: error: document 1 (GenericJob default/(no name)): spec: missing; expected a mapping\n"
            "job.yaml:3: error: document 1 (GenericJob default/(no name)): metadata: expected ",
            id="hardly a manifest",
        ),
        pytest.param(
            manifest("cleanUpPolicy: Some"),
            [],
            "job.yaml:6: error: document 1 (GenericJob default/job): spec.cleanUpPolicy: expected one of ",
            id="invalid",
        ),
    ],
)
def test_refusals_exit_with_2_and_print_no_plan(plan: Any, text: str, options: list[str], expected: str) -> None:
    code, out, err = plan(text, *options)

    assert (code, out) == (2, "")
    assert err.startswith(expected)
    assert "Traceback" not in err


def test_a_broken_job_does_not_hide_a_good_one(plan: Any) -> None:
    code, out, _ = plan(f"{manifest('cleanUpPolicy: Some', name='bad')}---\n{manifest(name='good')}")

    assert code == 2
    assert out.startswith("GenericJob default/good  (job.yaml)\n")


def test_warnings_go_beside_the_plan(plan: Any) -> None:
    code, out, err = plan(manifest("cleanUpPolcy: All"))

    assert code == 0
    assert out.startswith("GenericJob default/job  (job.yaml)\n")
    assert err == (
        "job.yaml:6: warning: document 1 (GenericJob default/job): spec.cleanUpPolcy: unknown field; "
        "did you mean `cleanUpPolicy`?\n"
    )


def test_help_has_an_example(capsys: Capture) -> None:
    assert run(["plan", "--help"]) == 0
    assert "  trainwright plan job.yaml\n" in capsys.readouterr().out


# -- the examples we ship ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_planned(example: Path, capsys: Capture) -> None:
    code = run(["plan", "-o", "json", str(example)])
    found = json.loads(capsys.readouterr().out)

    assert code == 0
    assert found["name"]
    assert [step["phase"] for step in found["steps"]][:2] == ["Pending", "Running"]
    debugging = any("Debug mode" in note for note in found["notes"])
    assert (found["steps"][-1]["phase"] == "Succeeded") is not debugging


EXPECTED = {
    "basic": [
        "the job is submitted → Pending creates 4 pods",
        "all 4 pods run → Running",
        'worker 0 exits with 0 → Succeeded rule {"worker":[0]}',
        'worker 0 exits with 1 → Failed rule {"worker":[0]}',
    ],
    "debug": ["the job is submitted → Pending creates 3 pods", "all 3 pods run → Running"],
    "mpi": [
        "the job is submitted → Pending creates 3 pods, 3 services",
        "all 3 pods run → Running",
        'launcher 0 exits with 0 → Succeeded rule {"launcher":[0]}',
        "clean-up → Succeeded removes 2 pods, 2 services",
        'launcher 0 exits with 1 → Failed rule {"launcher":[0]}',
        "clean-up → Failed removes 2 pods, 2 services",
    ],
    "scheduler": [
        "the job is submitted → Pending creates 6 pods, 1 pod group",
        "all 6 pods run → Running",
        'worker 0-3 exit with 0 → Succeeded rule {"worker":[0,1,2,3]}',
        "clean-up → Succeeded removes 2 pods, 1 pod group",
        "ps 0 exits with 1 → Failed any ps fails, or any worker fails",
        "clean-up → Failed removes 5 pods, 1 pod group",
    ],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_steps_of_an_example(name: str, capsys: Capture) -> None:
    assert run(["plan", str(EXAMPLES / f"{name}.yaml")]) == 0
    assert steps(capsys.readouterr().out) == EXPECTED[name]


def test_variables_are_filled_in(capsys: Capture) -> None:
    run(["plan", str(EXAMPLES / "torchrun.yaml")])

    assert "--nnodes=2 --node-rank=1" in (out := capsys.readouterr().out)
    assert "--rdzv-endpoint=torchrun-worker-0:29500" in out
    assert "ports    rdzv 29500" in out


def test_the_real_process_reads_standard_input() -> None:
    command = [sys.executable, "-m", "trainwright.cli.main", "plan", "-"]
    done = subprocess.run(command, input=manifest(), capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("GenericJob default/job  (stdin)\n  Creates 2 pods\n")


TFJOB = """\
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {{name: big, namespace: research}}
spec:
  tfReplicaSpecs:
    {kind}:
      replicas: {replicas}
      template:
        spec:
          containers: [{{name: tensorflow, image: x, command: [train]}}]
"""


def test_tf_config_is_shown_completely(plan: Any) -> None:
    code, out, _ = plan(TFJOB.format(kind="Worker", replicas=64))

    assert code == 0
    shown = [line.split("TF_CONFIG=", 1)[1] for line in out.splitlines() if "TF_CONFIG=" in line]
    assert len(shown) == 3
    for index, text in enumerate(shown):
        config = json.loads(text)
        assert config["task"] == {"type": "worker", "index": index}
        assert config["cluster"]["worker"] == [f"big-worker-{rank}.research.svc:2222" for rank in range(64)]


def test_a_job_that_never_succeeds_says_what_happens(plan: Any) -> None:
    code, out, _ = plan(TFJOB.format(kind="PS", replicas=2))

    assert code == 0
    assert "when never" not in out
    assert "succeeds     never: no replica can fulfil its success rule, so it runs until" in out
