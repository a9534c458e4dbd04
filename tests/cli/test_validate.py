# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - texts as they are printed; the command line is what is under test
"""`trainwright validate`: what a newcomer reads when a manifest is wrong, and that nothing hostile hurts."""

import io
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from patience import PATIENCE
from trainwright.cli.main import run
from trainwright.kinds.registry import KINDS

SCRIPT = Path(sys.executable).with_name("trainwright")
BROKEN = Path(__file__).parent / "broken"
JOB = b"""\
apiVersion: batch.tensorstack.dev/v1beta1
kind: GenericJob
metadata:
  name: fine
spec:
  replicaSpecs:
    - type: worker
      template:
        spec:
          containers:
            - name: train
              image: python:3.12
"""
SECRET = b"apiVersion: v1\nkind: Secret\nmetadata:\n  name: token\n"

#: What each broken manifest is told; the file's name stands before every line.
MESSAGES = {
    "clean-up-policy": ":6: error: document 1 (GenericJob default/broken): spec.cleanUpPolicy: expected one of All, None, "
    "Unfinished, found the text 'Running'",
    "command-text": ":14: error: document 1 (GenericJob default/broken): "
    "spec.replicaSpecs[0].template.spec.containers[0].command: expected a list, found the text 'python train.py'; "
    "a list is written [a, b] or with one `- ` per entry",
    "duplicate-key": ":9: error: document 1 (GenericJob default/broken): key 'replicas' is given twice, on lines 8 and 9",
    "empty": ": error: the file has no documents",
    "env-number": ":17: error: document 1 (GenericJob default/broken): "
    "spec.replicaSpecs[0].template.spec.containers[0].env[0].value: expected text, found the number 3; put it in quotes",
    "limit-below-request": "resources.limits.cpu: limits may not be below requests: the limit is 2, the request 4",
    "missing-apiversion": ":1: error: document 1: apiVersion: missing; expected batch.tensorstack.dev/v1beta1",
    "missing-name": ":3: error: document 1 (GenericJob default/(no name)): metadata.name: a job needs a name",
    "missing-spec": "spec: missing; expected a mapping",
    "misspelt-replica-specs": ":6: error: document 1 (GenericJob default/broken): spec.replicaSpec: unknown field, "
    "and the required replicaSpecs is missing; did you mean `replicaSpecs`?",
    "no-containers": "spec.replicaSpecs[0].template.spec.containers: missing; expected a list",
    "no-replicas": "spec.replicaSpecs: every type has 0 replicas; a job needs at least one",
    "no-such-volume": "there is no volume 'dataset'; the template has datasets; did you mean `datasets`?",
    "not-a-mapping": ":1: error: document 1: expected a mapping that begins with `apiVersion:`, found the text",
    "quantity": "resources.limits.memory: expected a quantity such as 2, 500m, 16Gi or 100M, found the text '16GB'",
    "rank-out-of-range": "spec.failureRules[0].worker: there is no rank 2: worker has 2 replicas, counted from 0",
    "replica-specs-mapping": ":6: error: document 1 (GenericJob default/broken): spec.replicaSpecs: expected a list, "
    "found a mapping with 1 key",
    "replicas-negative": "spec.replicaSpecs[0].replicas: expected a whole number from 0 to 10000, found the number -1",
    "replicas-text": ":8: error: document 1 (GenericJob default/broken): spec.replicaSpecs[0].replicas: expected a whole "
    "number from 0 to 10000, found the text '4'; write it without quotes",
    "restart-policy": "expected one of Always, Never, OnFailure, found the text 'OnFailed'; did you mean `OnFailure`?",
    "same-type-twice": "replica type 'worker' is given 2 times; each may be given once",
    "second-document": ":23: error: document 2 (GenericJob default/other): spec.service.ports[0].port: expected a whole "
    "number from 1 to 65535, found the number 70000",
    "tab": ":8: error: document 1: not valid YAML: indent with spaces, not tabs",
    "unclosed-quote": ":8: error: document 1: not valid YAML: the quotes that are opened here are never closed",
    "unfilled-template": ":8: error: document 1: a key must be text, not a list or a mapping; is this a template",
    "unknown-role-in-rule": "there is no replica type 'wroker'; the job has worker; did you mean `worker`?",
    "upper-case-name": "metadata.name: 'My_Job' becomes part of object names: use lower-case letters, digits and dashes",
    "variable-without-service": "command[2]: $(service.worker[0].host) needs spec.service, which is not set",
    "wrong-apiversion": ":1: error: document 1: apiVersion: expected batch.tensorstack.dev/v1beta1 for a GenericJob, "
    "found the text 'batch.tensorstack.dev/v1'; did you mean `batch.tensorstack.dev/v1beta1`?",
    "wrong-kind": ":2: error: document 1: kind: 'GenericJobs' of 'batch.tensorstack.dev/v1beta1' is not a kind that Trainwright knows; "
    f"expected {', '.join(f'{kind.name} ({kind.api_version})' for kind in KINDS)}; did you mean `GenericJob`?",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_broken_manifest_is_in_the_table() -> None:
    assert set(MESSAGES) == {file.stem for file in BROKEN.iterdir()}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_broken_manifest(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(BROKEN)

    assert run(["validate", f"{name}.yaml"]) == 2

    shown = capsys.readouterr()
    told = [line for line in shown.out.splitlines() if ": error: " in line or ": warning: " in line]
    assert len(told) == 1, "one cause, one message"
    assert told[0].startswith(f"{name}.yaml")
    assert MESSAGES[name] in told[0]
    assert " 1 invalid" in shown.out.splitlines()[-1]
    assert shown.err == ""


def test_a_valid_manifest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "job.yaml").write_bytes(JOB)

    assert run(["validate", "job.yaml"]) == 0
    assert (
        capsys.readouterr().out
        == "job.yaml: GenericJob default/fine is valid\n1 document valid, 0 invalid, 0 warnings\n"
    )


def test_what_stands_beside_a_job_is_skipped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "job.yaml").write_bytes(SECRET + b"---\n" + JOB)

    assert run(["validate", "job.yaml"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "job.yaml:1: skipped: v1 Secret default/token",
        "job.yaml: GenericJob default/fine is valid",
        "1 document valid, 0 invalid, 0 warnings, 1 skipped",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(b"apiVersion: v1\nkind: Secrt", "did you mean `Secret`?", id="near a kind beside"),
        pytest.param(
            b"apiVersion: v1\nkind: GenericJob", "apiVersion: expected batch.tensorstack.dev/v1beta1", id="version"
        ),
        pytest.param(
            b"apiVersion: x.io/v1\nkind: Quux",
            "kind: 'Quux' of 'x.io/v1' is not a kind that Trainwright knows",
            id="foreign",
        ),
        pytest.param(
            b"apiVersion: 1\nkind: GenericJob", "apiVersion: expected batch.tensorstack.dev/v1beta1, found", id="n"
        ),
        pytest.param(b"apiVersion: v1", "kind: missing; expected GenericJob", id="no kind"),
        pytest.param(b"kind: genericjob", "found the text 'genericjob'; did you mean `GenericJob`?", id="case alone"),
        pytest.param(
            b"kind: Tfjob",
            "apiVersion: missing; expected kubeflow.org/v1 or kubeflow.org/v1alpha2\n",
            id="case of TFJob",
        ),
        pytest.param(
            JOB.replace(b"name: fine", b'name: "a\\nb"'), "(GenericJob default/(no name))", id="name of two lines"
        ),
        pytest.param(JOB.replace(b"  name: fine", b"  [1]"), "metadata: expected a mapping", id="metadata of a list"),
    ],
)
def test_other_documents(folder: Path, capsys: pytest.CaptureFixture[str], text: bytes, expected: str) -> None:
    (folder / "job.yaml").write_bytes(text)

    assert run(["validate", "job.yaml"]) == 2
    assert expected in capsys.readouterr().out


ALL_AT_ONCE = b"""\
apiVersion: batch.tensorstack.dev/v1
kind: GenericJob
metadata: {name: My_Job}
spec:
  successRules: [{wroker: [0]}]
  cleanUpPolicy: Running
  failureRules: [{worker: [7]}]
  replicaSpecs:
    - type: worker
      replicas: 4
      restartPolicy: {policy: Always}
      template:
        spec:
          containers:
            - name: main
              image: x
              comand: [python]
              env: [{name: A, value: 1}]
              volumeMounts: [{name: d, mountPath: /d}]
"""


def test_no_mistake_hides_another(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "job.yaml").write_bytes(ALL_AT_ONCE)

    assert run(["validate", "-o", "json", "job.yaml"]) == 2

    (document,) = msgspec.json.decode(capsys.readouterr().out)["documents"]
    pod = "spec.replicaSpecs[0].template.spec.containers[0]"
    assert [(one["severity"], one["path"], one["line"]) for one in document["problems"]] == [
        ("error", "apiVersion", 1),
        ("error", "metadata.name", 3),
        ("error", "spec.successRules[0]", 5),
        ("error", "spec.cleanUpPolicy", 6),
        ("error", "spec.failureRules[0].worker", 7),
        ("warning", "spec.replicaSpecs[0].restartPolicy.limit", 11),
        ("warning", f"{pod}.comand", 17),
        ("error", f"{pod}.env[0].value", 18),
        ("error", f"{pod}.volumeMounts[0].name", 19),
    ]


@pytest.mark.parametrize("head", ["kind: GenericJobs", "knd: GenericJob", "kind: 5"])
def test_a_wrong_kind_hides_nothing_either(folder: Path, capsys: pytest.CaptureFixture[str], head: str) -> None:
    text = ALL_AT_ONCE.replace(b"v1\n", b"v1beta1\n", 1).replace(b"kind: GenericJob", head.encode())
    (folder / "job.yaml").write_bytes(text)

    assert run(["validate", "-o", "json", "job.yaml"]) == 2

    (document,) = msgspec.json.decode(capsys.readouterr().out)["documents"]
    paths = [one["path"] for one in document["problems"]]
    assert paths[0] == "kind"
    assert "knd" not in paths
    assert "spec.failureRules[0].worker" in paths


UNKNOWN = JOB.replace(b"spec:\n  rep", b"spec:\n  cleanUpPolcy: All\n  rep")


def test_warnings_do_not_stop_a_job(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "job.yaml").write_bytes(UNKNOWN)
    problem = "document 1 (GenericJob default/fine): spec.cleanUpPolcy: unknown field; did you mean `cleanUpPolicy`?"

    assert run(["validate", "job.yaml"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"job.yaml:6: warning: {problem}",
        "job.yaml: GenericJob default/fine is valid",
        "1 document valid, 0 invalid, 1 warning",
    ]
    assert run(["validate", "--strict", "job.yaml"]) == 2
    assert capsys.readouterr().out.splitlines() == [
        f"job.yaml:6: error: {problem}",
        "0 documents valid, 1 invalid, 0 warnings",
    ]


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "job.yaml").write_bytes(UNKNOWN + b"---\n" + SECRET)

    assert run(["validate", "-o", "json", "job.yaml", "none.yaml"]) == 2
    assert msgspec.json.decode(capsys.readouterr().out) == {
        "documents": [
            {
                "file": "job.yaml",
                "document": 1,
                "state": "valid",
                "subject": "GenericJob default/fine",
                "line": 1,
                "problems": [
                    {
                        "severity": "warning",
                        "path": "spec.cleanUpPolcy",
                        "message": "unknown field",
                        "nearest": "cleanUpPolicy",
                        "line": 6,
                    }
                ],
            },
            {"file": "job.yaml", "document": 2, "state": "skipped", "subject": "v1 Secret default/token", "line": 15},
            {
                "file": "none.yaml",
                "document": 0,
                "state": "invalid",
                "problems": [{"severity": "error", "path": "", "message": "no such file"}],
            },
        ],
        "summary": {"valid": 1, "invalid": 1, "skipped": 1, "warnings": 1},
    }


def test_a_kind_of_kubernetes_without_a_version_is_not_taken_for_one_of_ours(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "job.yaml").write_bytes(b"kind: Job")

    assert run(["validate", "job.yaml"]) == 2
    assert "did you mean" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "number"),
    [
        pytest.param(b"", 1, id="first"),
        pytest.param(SECRET + b"---\n", 2, id="second"),
        pytest.param(b"apiVersion: v1\nkind: List\nitems: [{kind: A}, {kind: B}]\n---\n", 3, id="after a list of two"),
    ],
)
def test_a_document_has_one_number_in_text_and_json(
    folder: Path, capsys: pytest.CaptureFixture[str], before: bytes, number: int
) -> None:
    (folder / "job.yaml").write_bytes(before + b"a: 1\na: 2\n")

    assert run(["validate", "job.yaml"]) == 2
    assert f"document {number}: key 'a' is given twice" in capsys.readouterr().out
    assert run(["validate", "-o", "json", "job.yaml"]) == 2
    finding = msgspec.json.decode(capsys.readouterr().out)["documents"][-1]
    assert finding["document"] == number
    assert finding["problems"][-1]["message"].startswith("key 'a' is given twice")


def test_a_file_that_cannot_be_read_does_not_keep_the_others_from_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "job.yaml").write_bytes(JOB)
    (folder / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (folder / "loop.yaml").symlink_to("loop.yaml")

    assert run(["validate", "none.yaml", ".", "image.png", "loop.yaml", "job.yaml"]) == 2
    assert capsys.readouterr().out.splitlines() == [
        "none.yaml: error: no such file",
        ".: error: this is a directory; give the files in it instead",
        "image.png:1: error: not UTF-8 text (byte 0x89); is this a manifest?",
        "loop.yaml: error: cannot be read: Too many levels of symbolic links",
        "job.yaml: GenericJob default/fine is valid",
        "1 document valid, 4 invalid, 0 warnings",
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable to root")
def test_a_file_one_may_not_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "job.yaml").touch(mode=0)

    assert run(["validate", "job.yaml"]) == 2
    assert "job.yaml: error: you have no permission to read this file" in capsys.readouterr().out


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(UNKNOWN)))

    assert run(["validate", "-"]) == 0
    assert capsys.readouterr().out.startswith("stdin:6: warning: ")


BOMB = b"a: &a [x,x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + level, 98 + level, b",".join([b"*%c" % (97 + level)] * 10)) for level in range(10)
)
MERGE_BOMB = b"a: &a {x: 1}\n" + b"".join(
    b"%c: &%c {<<: [%s], k%d: {<<: *%c}}\n"
    % (98 + level, 98 + level, b",".join([b"*%c" % (97 + level)] * 10), level, 97 + level)
    for level in range(20)
)
HOSTILE = {
    "ten megabytes of nonsense": (b"x9 [{:\t%" * 1_300_000, "larger than 3 MiB"),
    "alias bomb": (BOMB, "more than 50,000 values"),
    "merge bomb": (MERGE_BOMB, "more than 50,000 values"),
    "flow nesting": (b"[" * 100_000, "nested more than 64 levels deep"),
    "flow mapping nesting": (b"{a: " * 100_000, "nested more than 64 levels deep"),
    "block nesting": (b"- " * 100_000, "nested more than 64 levels deep"),
    "block mapping nesting": (b"\n".join(b" " * n + b"a:" for n in range(2400)), "nested more than 64 levels deep"),
    "NUL byte": (JOB + b"\0", "control character U+0000"),
    "three megabytes of keys": (b"".join(b"k%d: 1\n" % n for n in range(260_000)), "more than 50,000 values"),
    "as many unknown fields as fit": (JOB + b"".join(b"k%d: 1\n" % n for n in range(45_000)), "is valid"),
    "a giant number": (JOB + b"x: " + b"9" * 100_000, "a number of 100000 characters is too long"),
    "an endless device": (None, "larger than 3 MiB"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_hostile_hurts(tmp_path: Path, name: str) -> None:
    text, expected = HOSTILE[name]
    file = tmp_path / "job.yaml"
    if text is None:
        file = Path("/dev/zero")
    else:
        file.write_bytes(text)
    before, start = os.times(), time.monotonic()
    done = subprocess.run([SCRIPT, "validate", file], capture_output=True, text=True, check=False, timeout=PATIENCE)
    after = os.times()

    assert expected in done.stdout
    assert done.stderr == ""
    assert done.returncode == (0 if expected == "is valid" else 2)
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    print(f"{name}: {spent:.2f} s of CPU, {time.monotonic() - start:.2f} s")
    assert spent < 1  # of processor time: the machine may be busy with other tests
