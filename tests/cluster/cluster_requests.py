# SPDX-License-Identifier: Apache-2.0
"""All requests that `test_cluster_api` sends to a real API server and to ours, in independent scenarios."""

from cluster_asks import Scenario
from cluster_requests_lives import LIVES
from cluster_requests_reads import READS
from cluster_requests_writes import WRITES

SCENARIOS: tuple[Scenario, ...] = (*READS, *WRITES, *LIVES)
