# SPDX-License-Identifier: Apache-2.0
"""What children are called."""

import pytest
from msgspec.structs import replace

from trainwright.core.names import child
from trainwright.model.meta import Key
from trainwright.testing import factories as make


@pytest.mark.parametrize(
    ("name", "role", "index", "expected"),
    [
        pytest.param("job", "worker", 0, "job-worker-0", id="plain"),
        pytest.param("job", "worker", 12, "job-worker-12", id="two digits"),
        pytest.param("MyJob", "PS", 1, "MyJob-ps-1", id="only the role in lower case"),
        pytest.param("job", "group/worker", 1, "job-group-worker-1", id="a slash"),
        pytest.param("job", "a/b/c", 1, "job-a-b-c-1", id="every slash"),
    ],
)
def test_a_child_is_called_job_role_index(name: str, role: str, index: int, expected: str) -> None:
    job = replace(make.job(), key=Key("default", name))

    assert expected == child(job, role, index)
