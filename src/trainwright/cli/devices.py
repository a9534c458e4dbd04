# SPDX-License-Identifier: Apache-2.0
"""The devices that the user declares (`--gpus N`, `--device NAME=N`, the devices file), and the table of device leases.

`trainwright get --all-users` prints the table, which shows the user and the run that hold each device of this machine.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from trainwright.cli.flags import age, repeated_option, text_option
from trainwright.cli.output import as_json, as_yaml, columns
from trainwright.errors import UsageError
from trainwright.model.job import Body
from trainwright.model.problem import nearest
from trainwright.model.units import Time, parse_time
from trainwright.node.devices.inventory import GPU, KNOWN_VARIABLES, DeviceSet, found_gpus, numbered
from trainwright.node.devices.leases import HeldDevice, LeaseFolder
from trainwright.runtime.ports import WallClock

#: Maximum number of devices of one resource.
MAX_DEVICES = 1024
_FILE = "devices.yaml"
_FIELDS = ("devices", "env")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_RANGE = re.compile(r"([0-9]{1,4})-([0-9]{1,4})")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EXAMPLE = "huawei.com/Ascend910=8"


def device_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that declare devices of this machine. `declared` reads the values of these options."""
    command = text_option(
        "--device-config",
        metavar="FILE",
        help="Read from FILE which devices this machine has, and which environment variables tell a container its "
        "devices.  [default: trainwright/devices.yaml in $XDG_CONFIG_HOME or ~/.config]",
    )(command)
    command = repeated_option(
        "--device",
        metavar="NAME=N",
        help="Declare that this machine has N devices of the resource NAME. You can repeat this option.",
    )(command)
    count = click.IntRange(0, MAX_DEVICES)
    text = f"Declare that this machine has N GPUs. Same as --device {GPU}=N."
    return click.option("--gpus", type=count, metavar="N", help=text)(command)


def declared(gpus: int | None, device: Sequence[str], device_config: str) -> dict[str, DeviceSet]:
    """The devices that the user declares, by resource name. Raises UsageError."""
    found = _file(device_config)
    numbers = dict([_name_and_number(text) for text in device])
    if gpus is not None:
        if numbers.get(GPU, gpus) != gpus:
            raise UsageError(f"--gpus {gpus} and --device {GPU}={numbers[GPU]} contradict each other; give one of them")
        numbers[GPU] = gpus
    for name, number in numbers.items():
        known = found.get(name)
        if known is not None and known.ids and number > len(known.ids):
            listed = ", ".join(known.ids)
            raise UsageError(f"--device: {name}={number}; the devices file lists {len(known.ids)} of them: {listed}")
        variables = known.variables if known is not None else KNOWN_VARIABLES.get(name, ())
        if known is not None and known.ids:
            found[name] = DeviceSet(known.ids[:number], variables)
        else:
            found[name] = DeviceSet(numbered(number), variables, pretended=True)
    return found


def missing_variable_notices(devices: Mapping[str, DeviceSet]) -> list[str]:
    """A notice for each resource without a variable. Only an environment variable tells a container its devices."""
    notices = []
    for name, found in devices.items():
        if found.ids and not found.variables:
            near = nearest(name, KNOWN_VARIABLES)
            meant = f" (did you mean {near}?)" if near else ""
            notices.append(
                f"{name}{meant}: a container cannot know which of these devices it has, because no environment variable"
                f" is known for them; set one with `env` in {default_file()}"
            )
    return notices


def default_file() -> Path:
    """The path of the devices file if `--device-config` is not given."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "trainwright" / _FILE


def _name_and_number(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name:
        example = f"{text}=8" if _NAME.fullmatch(text) else _EXAMPLE
        raise UsageError(f"--device: {text!r}; expected NAME=N, such as {example}")
    problem = _name_problem(name)
    if problem:
        raise UsageError(f"--device: {text!r}; {problem}")
    if not number.isdecimal() or len(number) > 4 or int(number) > MAX_DEVICES:
        raise UsageError(f"--device: {text!r}; expected a number of devices from 0 to {MAX_DEVICES} after `{name}=`")
    return name, int(number)


def _name_problem(name: str) -> str:
    """A text that says why a resource name is wrong; empty if it is right. Only extended resources can be devices."""
    if _NAME.fullmatch(name) and not name.partition("/")[0].endswith("kubernetes.io"):
        return ""
    near = nearest(name, KNOWN_VARIABLES) or next((one for one in KNOWN_VARIABLES if one.endswith(f"/{name}")), "")
    meant = f"; did you mean `{near}`?" if near else ""
    return f"{name!r} is not a resource name; expected DOMAIN/NAME, such as amd.com/gpu{meant}"


def _file(given: str) -> dict[str, DeviceSet]:
    path = Path(given) if given else default_file()
    if not given and not path.exists():
        return {}
    import yaml  # noqa: PLC0415 - few machines have such a file

    try:
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        document = yaml.load(path.read_bytes(), Loader=loader)  # noqa: S506 - this is a safe loader
    except OSError as error:
        raise UsageError(f"the devices file {path} cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"the devices file {path} is not YAML: {' '.join(str(error).split())}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise UsageError(f"{path}: found {_kind(document)}, expected a map from resource names to `devices` and `env`")
    return {str(name): _entry(f"{path}: {name}", str(name), entry) for name, entry in document.items()}


def _entry(where: str, name: str, entry: Any) -> DeviceSet:
    problem = _name_problem(name)
    if problem:
        raise UsageError(f"{where}: {problem}")
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: found {_kind(entry)}, expected a map with `devices` and `env`")
    for field in entry:
        if field not in _FIELDS:
            near = nearest(str(field), _FIELDS)
            meant = f"; did you mean `{near}`?" if near else ""
            raise UsageError(f"{where}.{field}: unknown field; expected `devices` or `env`{meant}")
    variables = _variables(f"{where}.env", entry["env"]) if "env" in entry else KNOWN_VARIABLES.get(name, ())
    if "devices" in entry:
        return DeviceSet(_ids(f"{where}.devices", entry["devices"]), variables)
    return DeviceSet(found_gpus(os.environ) if name == GPU else (), variables)


def _ids(where: str, given: Any) -> tuple[str, ...]:
    """The ids of the devices. `given` is a number such as `8`, a range such as `0-7`, or a list of ids."""
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= MAX_DEVICES:
        return numbered(given)
    if isinstance(given, str) and (match := _RANGE.fullmatch(given)) and int(match[1]) <= int(match[2]):
        return tuple(str(number) for number in range(int(match[1]), int(match[2]) + 1))
    if not isinstance(given, list):
        raise UsageError(
            f"{where}: found {given!r}, expected a number up to {MAX_DEVICES}, a range such as 0-7, or a list"
        )
    ids = []
    for index, one in enumerate(given):
        if isinstance(one, bool) or not isinstance(one, int | str) or not str(one).strip() or "," in str(one):
            raise UsageError(f"{where}[{index}]: found {one!r}, expected the id of a device: a number or a word")
        if str(one) in ids:
            raise UsageError(f"{where}[{index}]: {one!r} is listed twice")
        ids.append(str(one))
    return tuple(ids)


def _variables(where: str, given: Any) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(one, str) and _VARIABLE.fullmatch(one) for one in names):
        raise UsageError(
            f"{where}: found {given!r}, expected names of environment variables, such as [ASCEND_RT_VISIBLE_DEVICES]"
        )
    return tuple(names)


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"{value!r}"


_HEAD = ["RESOURCE", "DEVICE", "USER", "JOB", "POD", "RUN", "PID", "AGE", "STATE"]


def show_leases(form: str) -> None:
    """Print every leased device. `form` is table, wide, name, json or yaml. Raises EngineError."""
    folder = LeaseFolder()
    # `held` locks each free device for a moment. The mutex keeps runs from trying to lease a device in this moment.
    with folder.mutex():
        held = folder.held()
    if form in ("table", "wide") and not held:
        click.echo("no device of this machine is leased", err=True)
    else:
        click.echo(_text(held, form), nl=False)


def _text(held: list[HeldDevice], form: str) -> str:
    if form in ("table", "wide"):
        now = WallClock().now()
        return "".join(f"{line}\n" for line in columns([_HEAD, *(_row(one, now) for one in held)]))
    if form == "name":
        return "".join(f"{one.resource}/{one.device}\n" for one in held)
    whole: Body = {"kind": "DeviceLeaseList", "items": [_item(one) for one in held]}
    return as_yaml([whole]) if form == "yaml" else as_json(whole)


def _state(one: HeldDevice) -> str:
    """The state of a leased device. `ending`: the run was killed, but some of its processes still use the device."""
    return "held" if one.holder.alive else "ending"


def _item(one: HeldDevice) -> Body:
    return {
        "resource": one.resource,
        "device": one.device,
        **msgspec.to_builtins(one.holder),
        "state": _state(one),
    }


def _row(one: HeldDevice, now: Time) -> list[str]:
    holder = one.holder
    since = parse_time(holder.since)
    old = age((now - since).total_seconds()) if since is not None else ""
    pid = str(holder.pid) if holder.pid else ""
    who = [holder.user or "unknown", holder.job, holder.pod, holder.run, pid]
    return [one.resource, one.device, *who, old, _state(one)]
