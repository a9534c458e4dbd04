# SPDX-License-Identifier: Apache-2.0
"""Limits and types of fields that all kinds share, and what is said of a manifest that exceeds a limit."""

import re
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct

from trainwright.model.meta import Key
from trainwright.model.problem import Problem

#: Replicas of a job in all: what its status must remember of them stays within what an API server stores.
MOST_REPLICAS = 10_000
#: Characters of a host name, and so of a pod's or service's name.
LONGEST_NAME = 63
#: Bytes of one environment variable with which Linux still starts a program.
LONGEST_VARIABLE = 131_072
#: What a job may be called whose name becomes part of host names.
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")

Seconds = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=MOST_REPLICAS)]
Word = Annotated[str, Meta(max_length=253)]
Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class Spec(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of the parts of a manifest; they hold the user's dicts, so they are left to the garbage collector."""


def doc(text: str) -> Meta:
    """What `kubectl explain` says of a field."""
    return Meta(description=text)


def check_name(name: str, *, hosts: str = "services") -> Iterator[Problem]:
    """The name of a job whose replicas have `services`, which must start with a letter, or only `hosts`."""
    path, letter = "metadata.name", hosts == "services"
    if not name:
        yield Problem(path, "a job needs a name")
    elif not LABEL.fullmatch(name) or (letter and not name[0].isalpha()):
        first = "a letter first" if letter else "a letter or digit first"
        message = f"{name[:60]!r} becomes the name of {hosts}: use lower-case letters, digits and dashes"
        yield Problem(path, f"{message}, with {first} and no dash at the end")
    elif len(name) > LONGEST_NAME:
        yield Problem(path, f"expected at most {LONGEST_NAME} characters, found {len(name)}")


def check_replica_names(job: str, role: str, replicas: int, path: str, also: str = "") -> Iterator[Problem]:
    """The longest name of a replica; `also` is what else may be shortened besides the name of the job."""
    longest = Key("", job).replica_name(role, max(replicas - 1, 0))
    if len(longest) > LONGEST_NAME:
        message = f"the replica's name {longest!r} has {len(longest)} characters; at most {LONGEST_NAME} are allowed"
        yield Problem(path, f"{message}: shorten metadata.name{also}")


def check_total(total: int, path: str) -> Iterator[Problem]:
    """The number of replicas of a job."""
    if total > MOST_REPLICAS:
        yield Problem(path, f"a job may have {MOST_REPLICAS} replicas; this one has {total}")
