# SPDX-License-Identifier: Apache-2.0
"""The device leases of this machine, of all its users: `trainwright get --all-users`."""

from collections.abc import Iterator

import click
import msgspec

from trainwright.cli.columns import columns
from trainwright.cli.duration import age
from trainwright.cli.record import as_yaml
from trainwright.local.devices.leases import HeldDevice, LeaseFolder
from trainwright.model.job import Body
from trainwright.model.units import Time, moment
from trainwright.runtime.clock import WallClock

_HEAD = ["RESOURCE", "DEVICE", "USER", "JOB", "POD", "RUN", "PID", "AGE", "STATE"]


def show_leases(form: str) -> None:
    """Print every device that somebody holds, in that form. Raises EngineError."""
    folder = LeaseFolder()
    with folder.mutex():  # nobody who takes leases meets us at a lock
        held = folder.held()
    if form in ("table", "wide") and not held:
        click.echo("no device of this machine is leased", err=True)
    else:
        click.echo(_text(held, form), nl=False)


def _text(held: list[HeldDevice], form: str) -> str:
    if form in ("table", "wide"):
        return "".join(f"{line}\n" for line in _table(held))
    if form == "name":
        return "".join(f"{one.resource}/{one.device}\n" for one in held)
    whole: Body = {"kind": "DeviceLeaseList", "items": [_item(one) for one in held]}
    if form == "yaml":
        return as_yaml([whole])
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode() + "\n"


def _state(one: HeldDevice) -> str:
    """A run that was killed holds its devices until the last of its processes has ended."""
    return "held" if one.holder.alive else "ending"


def _item(one: HeldDevice) -> Body:
    return {
        "resource": one.resource,
        "device": one.device,
        **msgspec.to_builtins(one.holder),
        "state": _state(one),
    }


def _table(held: list[HeldDevice]) -> Iterator[str]:
    now = WallClock().now()
    yield from columns(_HEAD, [_row(one, now) for one in held])


def _row(one: HeldDevice, now: Time) -> list[str]:
    by = one.holder
    since = moment(by.since)
    old = age((now - since).total_seconds()) if since is not None else ""
    pid = str(by.pid) if by.pid else ""
    return [one.resource, one.device, by.user or "unknown", by.job, by.pod, by.run, pid, old, _state(one)]
