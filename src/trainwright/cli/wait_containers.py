# SPDX-License-Identifier: Apache-2.0
"""The options about the init container of a PyTorchJob's workers, as a value for the site.

The options and the template file are those of training-operator. A template is a YAML list of containers with the words
{{.MasterAddr}}, {{.InitContainerImage}} and {{.MaxTries}}.
"""

import re
from pathlib import Path
from typing import Any

from trainwright.errors import UsageError
from trainwright.model.problem import nearest
from trainwright.model.site import LEADER, WaitRules

_OPTION = "--pytorch-init-container-template-file"
_WORD = re.compile(r"{{-?\s*(.*?)\s*-?}}")


def wait_rules(image: str, tries: int, template: str) -> WaitRules | None:
    """How workers wait for their master; None: they are created after it. Raises UsageError."""
    if template:
        return WaitRules(image, tries, _containers(template, image, tries))
    return WaitRules(image, tries) if image else None


def _containers(name: str, image: str, tries: int) -> tuple[dict[str, Any], ...]:
    import yaml  # noqa: PLC0415 - most operators need no YAML parser

    try:
        text = Path(name).expanduser().read_text(encoding="utf-8")
        found = yaml.safe_load(_filled(text, name, image, tries))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{_OPTION}: {name}: {getattr(error, 'strerror', None) or error}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{_OPTION}: {name}: {' '.join(str(error).split())}") from None
    if not isinstance(found, list) or not found or not all(_is_container(one) for one in found):
        raise UsageError(f"{_OPTION}: {name}: expected a list of containers, each with a name and an image")
    return tuple(found)


def _is_container(part: object) -> bool:
    return isinstance(part, dict) and all(isinstance(part.get(key), str) for key in ("name", "image"))


def _filled(text: str, name: str, image: str, tries: int) -> str:
    """The template with image and tries. The name of the master differs between jobs, so a stand-in stays."""
    known = {".MasterAddr": LEADER, ".InitContainerImage": image, ".MaxTries": str(tries)}

    def value(match: re.Match[str]) -> str:
        word = match[1]
        if word not in known:
            hint = nearest(word, known)
            text = f"; did you mean {hint}?" if hint else f"; known are {', '.join(known)}"
            raise UsageError(f"{_OPTION}: {name}: there is no value {word[:60]!r}{text}")
        return known[word]

    return _WORD.sub(value, text)
