# SPDX-License-Identifier: Apache-2.0
"""JSON merge patches (RFC 7386) on objects that nobody edits in place. Called by `store` for every patch and PUT.

What a patch does not change is shared between the old object and the new one, down to "nothing changed at all", which
is the very same object: that is how the store knows not to make a new version.
"""

from typing import Any

from trainwright.model.job import Body


def merge(target: Body, patch: Body) -> Body:
    """The target with the patch applied: new dicts along the changed path only, the target itself if none is needed."""
    result = target
    for key, value in patch.items():
        old = target.get(key)
        if value is None:
            if key in target:
                result = target.copy() if result is target else result
                del result[key]
            continue
        new = merge(old if isinstance(old, dict) else {}, value) if isinstance(value, dict) else value
        if new is old or (key in target and same(old, new)):
            continue
        result = target.copy() if result is target else result
        result[key] = new
    return result


def same(old: Any, new: Any) -> bool:
    """Equal as JSON: unlike Python, which takes 1, 1.0 and true for one."""
    if old is new:
        return True
    if type(old) is not type(new) or old != new:
        return False
    if isinstance(old, dict):
        return all(same(value, new[key]) for key, value in old.items())
    if isinstance(old, list):
        return all(map(same, old, new))
    return True


def settle(before: Body, after: Body) -> Body:
    """A whole new body, with every top-level part that is equal to the old one's being the old one's."""
    kept = {key: before[key] if key in before and same(before[key], value) else value for key, value in after.items()}
    shared = before.keys() == kept.keys() and all(kept[key] is value for key, value in before.items())
    return before if shared else kept
