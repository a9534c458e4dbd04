# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - texts as they are printed; the command line is what is under test
"""`trainwright validate` on TFJobs that somebody got wrong: the line, the path, what was found, the nearest thing."""

from pathlib import Path

import pytest

from trainwright.cli.main import run
from trainwright.kinds.registry import KINDS

JOB = """\
apiVersion: kubeflow.org/v1
kind: TFJob
metadata:
  name: broken
spec:
  runPolicy:
    cleanPodPolicy: Running
    backoffLimit: 3
  successPolicy: AllWorkers
  tfReplicaSpecs:
    PS:
      replicas: 1
      restartPolicy: Never
      template:
        spec:
          containers:
            - name: tensorflow
              image: tensorflow/tensorflow
    Worker:
      replicas: 2
      restartPolicy: ExitCode
      template:
        spec:
          containers:
            - name: tensorflow
              image: tensorflow/tensorflow
              command: [python, train.py]
"""
WHO = "document 1 (TFJob default/broken): "
POD = "spec.tfReplicaSpecs.Worker.template.spec"
NAMES = "use lower-case letters, digits and dashes, with a letter first and no dash at the end"

#: What is written in place of what, and what is said then.
BROKEN: dict[str, tuple[str, str, str]] = {
    "another version": (
        "kubeflow.org/v1\n",
        "kubeflow.org/v1beta2\n",
        ":1: error: document 1: apiVersion: expected kubeflow.org/v1 or kubeflow.org/v1alpha2 for a TFJob, found the text 'kubeflow.org/v1beta2'; did you mean `kubeflow.org/v1`?",
    ),
    "another kind": (
        "kind: TFJob",
        "kind: TfJob",
        ":2: error: document 1: kind: 'TfJob' of 'kubeflow.org/v1' is not a kind that Trainwright knows; "
        f"expected {', '.join(f'{kind.name} ({kind.api_version})' for kind in KINDS)}; did you mean `TFJob`?",
    ),
    "a name of digits": (
        "name: broken",
        "name: 00test",
        ":4: error: document 1 (TFJob default/00test): metadata.name: '00test' becomes the name of services: " + NAMES,
    ),
    "a clean-up policy of another kind": (
        "cleanPodPolicy: Running",
        "cleanPodPolicy: Unfinished",
        f":7: error: {WHO}spec.runPolicy.cleanPodPolicy: expected one of All, None, Running, found the text 'Unfinished'",
    ),
    "a limit in quotes": (
        "backoffLimit: 3",
        'backoffLimit: "3"',
        f":8: error: {WHO}spec.runPolicy.backoffLimit: expected a whole number from 0 to 2147483647, found the text '3'; write it without quotes",
    ),
    "a misspelt success policy": (
        "AllWorkers",
        "allworker",
        f":9: warning: {WHO}spec.successPolicy: 'allworker' is not known and means the same as nothing; expected AllWorkers or none; did you mean `AllWorkers`?",
    ),
    "misspelt replica specs": (
        "tfReplicaSpecs",
        "tfReplicaSpec",
        f":10: error: {WHO}spec.tfReplicaSpec: unknown field, and the required tfReplicaSpecs is missing; did you mean `tfReplicaSpecs`?",
    ),
    "a misspelt type": (
        "    Worker:",
        "    Wroker:",
        f":19: error: {WHO}spec.tfReplicaSpecs.Wroker: 'Wroker' is not a type of replica; expected Chief, Evaluator, Master, PS, Worker; did you mean `Worker`?",
    ),
    "one type twice": (
        "    PS:",
        "    worker:",
        f":19: error: {WHO}spec.tfReplicaSpecs.Worker: 'Worker' and 'worker' are the same type; give it once",
    ),
    "a list of replicas": (
        "replicas: 2",
        "replicas: [2]",
        f":20: error: {WHO}spec.tfReplicaSpecs.Worker.replicas: expected a whole number from 0 to 10000, found a list of 1",
    ),
    "a restart policy in lower case": (
        "ExitCode",
        "exitcode",
        f":21: error: {WHO}spec.tfReplicaSpecs.Worker.restartPolicy: expected one of Always, ExitCode, Never, OnFailure, found the text 'exitcode'; did you mean `ExitCode`?",
    ),
    "a container of another name": (
        "            - name: tensorflow\n              image: tensorflow/tensorflow\n              command",
        "            - name: train\n              image: tensorflow/tensorflow\n              command",
        f":24: error: {WHO}{POD}.containers: no container is called 'tensorflow', which is the one that trains; found train",
    ),
    "no image": (
        "image: tensorflow/tensorflow\n              command",
        "imagePullPolicy: Always\n              command",
        f":25: error: {WHO}{POD}.containers[0].image: missing; expected the name of an image",
    ),
    "a command that is text": (
        "[python, train.py]",
        "python train.py",
        f":27: error: {WHO}{POD}.containers[0].command: expected a list, found the text 'python train.py'; a list is written [a, b] or with one `- ` per entry",
    ),
    "the indentation of a template": (
        "    Worker:\n      replicas: 2",
        "    Worker:\n    Evaluator:\n      replicas: 2",
        f":19: error: {WHO}spec.tfReplicaSpecs.Worker: expected a mapping, found nothing (null)",
    ),
}


@pytest.mark.parametrize(("old", "new", "said"), BROKEN.values(), ids=BROKEN)
def test_a_broken_tfjob(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, old: str, new: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert old in JOB
    Path("job.yaml").write_text(JOB.replace(old, new, 1), encoding="utf-8")

    code = run(["validate", "job.yaml"])
    told = capsys.readouterr().out.splitlines()

    assert f"job.yaml{said}" in told
    assert code == (2 if any(": error: " in line for line in told) else 0)


def test_the_manifest_that_is_broken_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")

    assert run(["validate", str(tmp_path / "job.yaml")]) == 0
    assert "0 invalid, 0 warnings" in capsys.readouterr().out
