# SPDX-License-Identifier: Apache-2.0
"""JAXJob, `kubeflow.org/v1`, as a `Kind`: workers of one type, of which every one must succeed."""

from trainwright.kinds.jaxjob import environment
from trainwright.kinds.jaxjob.wire import MAIN, REPLICA_TYPES, JAXJob
from trainwright.kinds.kubeflow.framework import Framework, worker_texts
from trainwright.kinds.kubeflow.kind import make_kind

JAX = Framework(
    name="JAXJob",
    field="jaxReplicaSpecs",
    types=REPLICA_TYPES,
    main=MAIN,
    texts=worker_texts("JAXJob"),
    wire=JAXJob,
    variables=environment.variables,
    endpoints=environment.endpoints,
    variable_names=("COORDINATOR_PORT", "COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID"),
    has_scale=True,
    removed_reason="SuccessfulDeletePod",
)
JAXJOB = make_kind(JAX)
