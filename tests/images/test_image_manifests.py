# SPDX-License-Identifier: Apache-2.0
"""Chain ids as the image specification defines them, and the choice of a platform."""

import pytest
from image_builder import digest

from trainwright.errors import ImageNotFoundError
from trainwright.images.manifests import Descriptor, Platform, chain_ids, choose_platform, this_platform

A, B, C = (digest(name.encode()) for name in "abc")
HERE = this_platform()


def test_chain_ids() -> None:
    two = digest(f"{A} {B}".encode())

    assert chain_ids([A, B, C]) == (A, two, digest(f"{two} {C}".encode()))
    assert chain_ids([]) == ()


@pytest.mark.parametrize(
    ("platforms", "chosen"),
    [
        ([("plan9", HERE.architecture, ""), ("linux", HERE.architecture, "")], 1),
        ([("linux", "mips", ""), ("linux", HERE.architecture, HERE.variant)], 1),
        ([("linux", HERE.architecture, "v99"), ("linux", HERE.architecture, HERE.variant)], 1),
        ([("linux", HERE.architecture, "v99")], 0),
        ([("unknown", "unknown", ""), None], 1),
    ],
)
def test_a_platform(platforms: list[tuple[str, str, str] | None], chosen: int) -> None:
    listed = [
        Descriptor(digest(str(number).encode()), 1, platform=one and Platform(one[1], one[0], one[2]))
        for number, one in enumerate(platforms)
    ]

    assert choose_platform(listed, "x") is listed[chosen]


def test_no_platform() -> None:
    with pytest.raises(ImageNotFoundError, match=f"x: found images for none; expected {HERE}"):
        choose_platform([Descriptor(A, 1, platform=Platform("unknown", "unknown"))], "x")
