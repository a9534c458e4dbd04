# SPDX-License-Identifier: Apache-2.0
"""Names of images are read as docker reads them."""

import pytest

from trainwright.errors import ImageNameError
from trainwright.images.reference import parse_reference

DIGEST = f"sha256:{'a1' * 32}"


@pytest.mark.parametrize(
    ("text", "full", "familiar"),
    [
        ("busybox", "docker.io/library/busybox:latest", "busybox:latest"),
        ("busybox:1.36", "docker.io/library/busybox:1.36", "busybox:1.36"),
        ("pytorch/pytorch:2", "docker.io/pytorch/pytorch:2", "pytorch/pytorch:2"),
        ("docker.io/busybox", "docker.io/library/busybox:latest", "busybox:latest"),
        ("index.docker.io/library/busybox", "docker.io/library/busybox:latest", "busybox:latest"),
        ("localhost/a", "localhost/a:latest", "localhost/a:latest"),
        ("localhost:5000/a/b:x", "localhost:5000/a/b:x", "localhost:5000/a/b:x"),
        ("registry.example/a", "registry.example/a:latest", "registry.example/a:latest"),
        ("[::1]:5000/a", "[::1]:5000/a:latest", "[::1]:5000/a:latest"),
        ("lab/a/b/c", "docker.io/lab/a/b/c:latest", "lab/a/b/c:latest"),
        (f"busybox@{DIGEST}", f"docker.io/library/busybox@{DIGEST}", f"busybox@{DIGEST}"),
        (f"busybox:1@{DIGEST}", f"docker.io/library/busybox@{DIGEST}", f"busybox@{DIGEST}"),
        ("a__b/c-d--e.f_g:T_1.2-3", "docker.io/a__b/c-d--e.f_g:T_1.2-3", "a__b/c-d--e.f_g:T_1.2-3"),
    ],
)
def test_a_name(text: str, full: str, familiar: str) -> None:
    reference = parse_reference(text)

    assert (str(reference), reference.familiar()) == (full, familiar)
    assert parse_reference(familiar) == reference


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "found no name, expected for example `busybox:1.36`"),
        ("Busybox", "found 'Busybox', expected lower-case letters and digits, with `.`, `_` or `-` between them"),
        ("pytorch/PyTorch:2", "did you mean `pytorch/pytorch:2`?"),
        ("registry.example/a//b", "found '', expected lower-case letters"),
        ("a:b c", "found the tag 'b c', expected letters, digits"),
        ("a:", "found the tag ''"),
        (f"a:{'x' * 129}", "at most 128 of them"),
        ("a@sha256:12", "found the digest 'sha256:12', expected sha256: and 64 hexadecimal digits"),
        ("a@md5:00", "found the digest 'md5:00'"),
        ("a1" * 32, "found the id of an image, expected a name"),
        ("-x.example/a", "found the registry '-x.example', expected a host name"),
        (f"registry.example/{'a' * 256}", "found a name of 256 characters, expected at most 255"),
        ("http://registry.example/a", "found the registry 'http:', expected a host name"),
        ("../etc", "found the registry '..', expected a host name"),
    ],
)
def test_what_is_no_name(text: str, error: str) -> None:
    with pytest.raises(ImageNameError) as caught:
        parse_reference(text)

    assert str(caught.value).startswith(f"{text!r} is not the name of an image: ")
    assert error in str(caught.value)
