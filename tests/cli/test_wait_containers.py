# SPDX-License-Identifier: Apache-2.0
"""The options about the init container of a PyTorchJob's workers."""

from pathlib import Path

import pytest

from trainwright.cli.wait_containers import wait_rules
from trainwright.errors import UsageError
from trainwright.model.site import LEADER, WaitRules

#: In the form of training-operator's own template.
TEMPLATE = """
- name: wait
  image: {{.InitContainerImage}}
  command: ['sh', '-c', 'for i in $(seq {{ .MaxTries }}); do nslookup {{.MasterAddr}} && exit; done; exit 1']
"""


def test_an_empty_image_means_that_the_operator_waits() -> None:
    assert wait_rules("", 100, "") is None
    assert wait_rules("busybox", 7, "") == WaitRules("busybox", 7)


def test_a_template_is_filled_in(tmp_path: Path) -> None:
    file = tmp_path / "init.yaml"
    file.write_text(TEMPLATE)
    rules = wait_rules("busybox", 7, str(file))
    assert rules is not None
    (container,) = rules.containers

    assert (container["name"], container["image"]) == ("wait", "busybox")
    assert container["command"][2] == f"for i in $(seq 7); do nslookup {LEADER} && exit; done; exit 1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- name: {{.MasterAdr}}\n", "did you mean .MasterAddr?"),
        ("name: x\n", "expected a list of containers"),
        ("- name: x\n", "each with a name and an image"),
        ("[]\n", "expected a list of containers"),
        ("- [\n", "while parsing"),
    ],
)
def test_a_wrong_template_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "init.yaml"
    file.write_text(text)

    with pytest.raises(UsageError, match="--pytorch-init-container-template-file") as error:
        wait_rules("busybox", 7, str(file))
    assert words in str(error.value)


def test_a_missing_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        wait_rules("busybox", 7, str(tmp_path / "absent.yaml"))
