# SPDX-License-Identifier: Apache-2.0
"""Volumes that are put together from several sources: tokens, ConfigMaps, Secrets, the pod itself. For `volumes`.

Every pod of a Kubernetes cluster has one, unless it says otherwise: the token of its service account.
"""

from trainwright.local.agent import contents, fields, paths
from trainwright.local.agent.contents import Files
from trainwright.local.agent.refusals import Unconfigured, missing
from trainwright.local.agent.sources import CONFIG_MAP, SECRET, Sources, token
from trainwright.model.job import Body

KNOWN = ("serviceAccountToken", "configMap", "secret", "downwardAPI")
_MODE = 0o644


def files(pod: Body, source: Body, found: Sources, facts: fields.Facts, path: str) -> Files:
    """Everything in a `projected` volume."""
    made: Files = {}
    mode = int(source.get("defaultMode") or _MODE)
    for index, part in enumerate(source.get("sources") or ()):
        where = f"{path}.sources[{index}]"
        match part:
            case {"serviceAccountToken": wanted}:
                made |= _token(wanted, found, mode, where)
            case {"configMap": wanted}:
                made |= _keys(pod, CONFIG_MAP, wanted, found, mode, f"{where}.configMap")
            case {"secret": wanted}:
                made |= _keys(pod, SECRET, wanted, found, mode, f"{where}.secret")
            case {"downwardAPI": wanted}:
                made |= of_pod(pod, wanted, facts, mode, f"{where}.downwardAPI")
            case _:
                raise Unconfigured(where, f"{', '.join(part)}: not supported here; expected one of {', '.join(KNOWN)}")
    return made


def of_pod(pod: Body, source: Body, facts: fields.Facts, mode: int, path: str) -> Files:
    """What a pod tells about itself: the items of a `downwardAPI`."""
    made: Files = {}
    for index, item in enumerate(source.get("items") or ()):
        where = f"{path}.items[{index}]"
        name = paths.inner(str(item.get("path", "")), f"{where}.path")
        made[name] = _told(pod, item, facts, where).encode(), int(item.get("mode") or mode)
    return made


def _told(pod: Body, item: Body, facts: fields.Facts, path: str) -> str:
    match item:
        case {"fieldRef": {"fieldPath": "metadata.labels" | "metadata.annotations" as field}}:
            pairs = sorted((pod["metadata"].get(field[9:]) or {}).items())
            return "\n".join(f'{key}="{_escaped(str(value))}"' for key, value in pairs)
        case {"fieldRef": ref}:
            return fields.of_pod(ref, pod, facts, f"{path}.fieldRef")
        case {"resourceFieldRef": ref}:
            return fields.of_resources(ref, pod, {}, facts, f"{path}.resourceFieldRef")
    raise Unconfigured(path, "expected fieldRef or resourceFieldRef")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _token(wanted: Body, found: Sources, mode: int, path: str) -> Files:
    """Without service accounts (`trainwright run`) the file is left out, and preflight has said so."""
    body = found.get(token(wanted))
    if body is None:
        return {}
    name = paths.inner(str(wanted.get("path", "")), f"{path}.serviceAccountToken.path")
    return {name: (str(body["token"]).encode(), mode)}


def _keys(pod: Body, kind: str, wanted: Body, found: Sources, mode: int, path: str) -> Files:
    name = str(wanted.get("name", ""))
    body = found.get((kind, name))
    if body is None and not wanted.get("optional"):
        raise missing(f"{path}.name", kind, name, str(pod["metadata"].get("namespace", "")))
    data = (contents.of_config_map if kind == CONFIG_MAP else contents.of_secret)(body or {})
    return contents.chosen(data, {"defaultMode": mode, **wanted}, path)
