# SPDX-License-Identifier: Apache-2.0
"""How replicas reach each other, by the place they run in."""

from collections.abc import Mapping

import pytest

from trainwright.model.meta import Key
from trainwright.model.site import Site

JOB = Key("default", "job")


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        pytest.param({}, "job-worker-0", id="nothing is reserved"),
        pytest.param({(JOB, "job-worker-0"): "127.0.0.2"}, "127.0.0.2", id="reserved"),
        pytest.param({(JOB, "job-worker-1"): "127.0.0.3"}, "job-worker-0", id="another replica's"),
        pytest.param({(Key("other", "job"), "job-worker-0"): "127.0.0.4"}, "job-worker-0", id="another job's name"),
    ],
)
def test_where_names_do_not_resolve_a_replica_is_reached_by_its_host(
    hosts: Mapping[tuple[Key, str], str], expected: str
) -> None:
    assert expected == Site(names_resolve=False, hosts=hosts).host(JOB, "job-worker-0")


def test_where_names_resolve_a_replica_is_reached_by_its_name_and_port() -> None:
    site = Site(hosts={(JOB, "job-worker-0"): "127.0.0.2"}, ports={(JOB, "job-worker-0", 2222): 20000})
    assert (site.host(JOB, "job-worker-0"), site.port(JOB, "job-worker-0", 2222)) == ("job-worker-0", 2222)


def test_what_is_reserved_cannot_be_changed() -> None:
    for table in (Site().hosts, Site().ports):
        with pytest.raises(TypeError):
            table["x"] = "y"  # type: ignore[index]


def test_a_silent_node_has_a_minute_and_a_lingering_pod_half_of_one() -> None:
    assert (Site().node_grace, Site().linger) == (60.0, 30.0)
