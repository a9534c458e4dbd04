# SPDX-License-Identifier: Apache-2.0
"""Root without all capabilities, as in most containers: it uses a user namespace, like other users."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sandboxed import Sandboxed

# Capabilities that container engines usually leave to root.
_USUAL = ",+chown,+dac_override,+fsetid,+fowner,+net_raw,+setgid,+setuid,+setfcap,+setpcap,+sys_chroot,+kill"

pytestmark = pytest.mark.parametrize("who", ["root"], indirect=True)


@pytest.fixture
def limited(folder: Path, request: pytest.FixtureRequest) -> Iterator[Sandboxed]:
    box = Sandboxed(folder, "root", ["setpriv", f"--bounding-set=-all{request.param}"])
    yield box
    box.end()


@pytest.mark.parametrize("limited", [_USUAL, ",+setfcap"], ids=["as in containers", "hardly any"], indirect=True)
def test_root_without_the_right_to_make_namespaces_gets_them_by_a_user_namespace(limited: Sandboxed) -> None:
    limited.ready()
    limited.open("web")
    script = "hostname; id -u; echo memory > /dev/shm/file && cat /dev/shm/file; cut -d: -f1 /proc/net/dev | xargs"
    assert limited.run(script, "web").split()[:3] == ["web", "0", "memory"]


@pytest.mark.parametrize("limited", [""], indirect=True)
def test_root_that_may_not_have_a_user_namespace_either_is_told_what_is_missing(limited: Sandboxed) -> None:
    limited.until(lambda: bool(limited.events), "the supervisor")
    failed = limited.event("failed")["text"]
    assert "does not allow trainwright to create namespaces (root without CAP_SETFCAP cannot be root in" in failed
