# SPDX-License-Identifier: Apache-2.0
"""How a user says which devices there are, and what is said of mistakes."""

import re
from pathlib import Path

import pytest

from trainwright.cli.devices import declared, missing_variable_notices
from trainwright.errors import UsageError
from trainwright.node.devices.inventory import DeviceSet

GPU, AMD, NPU = "nvidia.com/gpu", "amd.com/gpu", "huawei.com/Ascend910"
CUDA = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that is found without being named."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "trainwright").mkdir()
    return tmp_path / "trainwright" / "devices.yaml"


def test_nothing_is_said_and_nothing_is_there(config: Path) -> None:
    assert declared(None, (), "") == {}
    config.write_text("# nothing yet\n")
    assert declared(None, (), "") == {}


@pytest.mark.usefixtures("config")
def test_devices_are_counted_on_the_command_line() -> None:
    two = {"ids": ("0", "1"), "pretended": True}
    assert declared(2, (), "") == {GPU: DeviceSet(variables=CUDA, **two)}  # type: ignore[arg-type]
    assert declared(2, (f"{GPU}=2",), "") == declared(None, (f"{GPU}=2",), "")
    found = declared(None, (f"{AMD}=2", f"{NPU}=2", "x.com/npu=2"), "")
    assert {name: one.variables for name, one in found.items()} == {
        AMD: ("ROCR_VISIBLE_DEVICES",),
        NPU: ("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES"),
        "x.com/npu": (),
    }


def test_a_file_lists_devices_and_variables(config: Path) -> None:
    config.write_text(
        "x.com/a: {devices: [left, 7], env: A}\nx.com/b: {devices: 2-4, env: [B, C]}\n"
        f"{NPU}: {{devices: 2}}\n{AMD}: {{env: [HIP_VISIBLE_DEVICES]}}\n"
    )
    found = declared(None, (f"{AMD}=1", "x.com/a=1"), "")
    assert found == {
        "x.com/a": DeviceSet(("left",), ("A",)),
        "x.com/b": DeviceSet(("2", "3", "4"), ("B", "C")),
        NPU: DeviceSet(("0", "1"), ("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES")),
        AMD: DeviceSet(("0",), ("HIP_VISIBLE_DEVICES",), pretended=True),
    }


def test_a_file_that_is_named_is_read_in_place_of_the_usual_one(config: Path, tmp_path: Path) -> None:
    config.write_text("nonsense")
    other = tmp_path / "other.yaml"
    other.write_text("x.com/a: {devices: 1, env: A}\n")
    assert declared(None, (), str(other)) == {"x.com/a": DeviceSet(("0",), ("A",))}


FLAGS = {
    f"{NPU}": f"expected NAME=N, such as {NPU}=8",
    "gpu": "expected NAME=N, such as huawei.com/Ascend910=8",
    "gpu=2": "'gpu' is not a resource name; expected DOMAIN/NAME, such as amd.com/gpu; did you mean `nvidia.com/gpu`?",
    "cpu=2": "'cpu' is not a resource name",
    "kubernetes.io/x=2": "'kubernetes.io/x' is not a resource name",
    "nvidia.com/gpu =2": "'nvidia.com/gpu ' is not a resource name; expected DOMAIN/NAME, such as amd.com/gpu; did you"
    " mean `nvidia.com/gpu`?",
    "x.com/a=many": "expected a number of devices from 0 to 1024 after `x.com/a=`",
    "x.com/a=-1": "expected a number of devices from 0 to 1024",
    "x.com/a=1025": "expected a number of devices from 0 to 1024",
    "x.com/a=": "expected a number of devices from 0 to 1024",
}


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("flag", FLAGS)
def test_a_mistake_on_the_command_line_is_explained(flag: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--device: {flag!r}; {FLAGS[flag]}")):
        declared(None, (flag,), "")


@pytest.mark.usefixtures("config")
def test_two_numbers_for_one_resource_contradict_each_other() -> None:
    with pytest.raises(UsageError, match=r"--gpus 2 and --device nvidia\.com/gpu=3 contradict each other"):
        declared(2, (f"{GPU}=3",), "")


FILES = {
    "x.com/a: {devices: [1]": "is not YAML: ",
    "- x.com/a": "found a list, expected a map from resource names to `devices` and `env`",
    "x.com/a: 4": "x.com/a: found 4, expected a map with `devices` and `env`",
    "gpu: {devices: 4}": "gpu: 'gpu' is not a resource name",
    "x.com/a: {device: 4}": "x.com/a.device: unknown field; expected `devices` or `env`; did you mean `devices`?",
    "x.com/a: {devices: many}": "x.com/a.devices: found 'many', expected a number up to 1024, a range such as 0-7, or",
    "x.com/a: {devices: 3-1}": "x.com/a.devices: found '3-1'",
    "x.com/a: {devices: true}": "x.com/a.devices: found True",
    "x.com/a: {devices: [0, '1,2']}": "x.com/a.devices[1]: found '1,2', expected the id of a device",
    "x.com/a: {devices: [0, 0]}": "x.com/a.devices[1]: 0 is listed twice",
    "x.com/a: {env: [1A]}": "x.com/a.env: found ['1A'], expected names of environment variables",
}


@pytest.mark.parametrize("text", FILES)
def test_a_mistake_in_the_file_is_explained(config: Path, text: str) -> None:
    config.write_text(text)
    with pytest.raises(UsageError, match=rf"{re.escape(str(config))}.*{re.escape(FILES[text])}"):
        declared(None, (), "")


def test_a_file_that_lists_fewer_is_not_overruled(config: Path) -> None:
    config.write_text("x.com/a: {devices: [4, 5]}\n")
    with pytest.raises(UsageError, match=r"x\.com/a=3; the devices file lists 2 of them: 4, 5"):
        declared(None, ("x.com/a=3",), "")


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the devices file .*/none cannot be read: No such file"):
        declared(None, (), str(tmp_path / "none"))


def test_devices_of_which_containers_learn_nothing_are_told_of() -> None:
    (told,) = missing_variable_notices(
        {"huawei.com/ascend910": DeviceSet(("0",)), GPU: DeviceSet(("0",), CUDA), "x.com/a": DeviceSet()}
    )
    assert told.startswith("huawei.com/ascend910 (did you mean huawei.com/Ascend910?): a container cannot know which")
