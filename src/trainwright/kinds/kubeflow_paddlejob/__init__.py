# SPDX-License-Identifier: Apache-2.0
"""PaddleJob of `kubeflow.org/v1` as a `Kind`: masters (parameter servers), whose success decides the job, and workers.

`kinds.paddlejob` is another kind with the same name, of the group `batch.paddlepaddle.org`.
"""

from collections.abc import Iterator

from trainwright.kinds.kubeflow.framework import Framework, leader_texts, worker_texts
from trainwright.kinds.kubeflow.kind import make_kind
from trainwright.kinds.kubeflow_paddlejob import environment
from trainwright.kinds.kubeflow_paddlejob.wire import MAIN, REPLICA_TYPES, KubeflowPaddleJob
from trainwright.model.problem import Problem


def check(job: KubeflowPaddleJob) -> Iterator[Problem]:
    """Warn of a policy that the original controller ignores too."""
    if job.spec.elastic_policy is not None:
        message = "has no effect: this kind neither scales its jobs nor tells the pods about it; use kubectl scale"
        yield Problem("spec.elasticPolicy", message, warning=True)


PADDLE = Framework(
    name="PaddleJob",
    field="paddleReplicaSpecs",
    types=REPLICA_TYPES,
    main=MAIN,
    texts=leader_texts("PaddleJob"),
    texts_without_leader=worker_texts("PaddleJob"),
    wire=KubeflowPaddleJob,
    variables=environment.variables,
    endpoints=environment.endpoints,
    variable_names=(
        *("PADDLE_JOB_ID", "PADDLE_NNODES", "POD_IP_DUMMY", "PADDLE_MASTER", "PADDLE_SERVER_NUM", "PADDLE_TRAINER_NUM"),
    ),
    restart_policy="OnFailure",
    marks_worker=False,
    has_scale=True,
    removed_reason="SuccessfulDeletePod",
    check=check,
)
KUBEFLOW_PADDLEJOB = make_kind(PADDLE, shares_name=True)
