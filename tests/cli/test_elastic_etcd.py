# SPDX-License-Identifier: Apache-2.0
"""Elastic PaddleJobs need an etcd: `plan` says so, and `run` warns where none is given."""

from pathlib import Path

import pytest
import yaml
from run_command import CommandRunner, demo

from trainwright.cli.main import run
from trainwright.model.job import Body

OPTION = "--etcd-server HOST:PORT"


def paddle(*, elastic: bool = True, **variables: str) -> Body:
    env = [{"name": name, "value": value} for name, value in variables.items()]
    container = {"name": "paddle", "image": "x", "command": ["true"], "env": env}
    worker = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    spec = {"elastic": 1, "worker": worker} if elastic else {"worker": worker}
    return {
        "apiVersion": "batch.paddlepaddle.org/v1",
        "kind": "PaddleJob",
        "metadata": {"name": "demo"},
        "spec": spec,
    }


@pytest.mark.parametrize(
    ("body", "warned"),
    [
        pytest.param(paddle(), True, id="elastic"),
        pytest.param(paddle(elastic=False), False, id="not elastic"),
        pytest.param(paddle(PADDLE_MASTER="etcd://here:2379"), False, id="with an etcd of its own"),
        pytest.param(demo(), False, id="another kind"),
    ],
)
def test_plan_says_which_jobs_need_an_etcd(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: Body, warned: bool
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(body))

    assert run(["plan", str(file)]) == 0
    assert (OPTION in capsys.readouterr().out) is warned


def test_run_warns_once_where_no_etcd_is_given(tmp_path: Path) -> None:
    runner = CommandRunner(tmp_path)
    text = f"notice: replicas of demo find each other through an etcd server; give one with {OPTION}"

    assert runner.run(paddle()).stdout.count(text) == 1
    assert text not in runner.run(paddle(), args=("--etcd-server", "127.0.0.1:9")).stdout
    assert text not in runner.run(paddle(), args=("--env", "PADDLE_MASTER=etcd://here:2379")).stdout
