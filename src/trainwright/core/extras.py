# SPDX-License-Identifier: Apache-2.0
"""Children of the whole job, a pod group or a ConfigMap: made, kept in step, removed. Called by `run` in every pass."""

from trainwright.core import gate, removal, render
from trainwright.core.observe import View
from trainwright.model.action import Create, Delete, Patch
from trainwright.model.child import Extra
from trainwright.model.job import Body
from trainwright.model.meta import DIGEST, PLACES, WORLD

Address = tuple[str, str, str]


def kept(view: View) -> tuple[list[Create], list[Patch], list[Delete]]:
    """What the dialect wants and is not there, what is out of step by its digest, what nobody wants any more."""
    bodies = view.job.dialect.extras(view.job, gate.basis(view.job, view.roles, view.observed), view.site)
    if not bodies and not view.observed.extras:
        return [], [], []
    gang = view.job.gang.at(view.site) if view.job.gang is not None else None
    # The group of a gang may only be out of sight: what is there stays there.
    unseen = "PodGroup" if view.job.gang is not None and gang is None else ""
    places = gate.places(view.job, view.roles)
    made = [render.extra(view.job, body, places) for body in bodies if body["kind"] != unseen]
    wanted = {render.address(view.job, create.body): create for create in made}
    present = {removal.address(extra): extra for extra in view.observed.extras if extra.kind != unseen}
    old = {key for key, extra in present.items() if gate.outlived(view.job, extra, view.roles)}
    lasting = {key: create for key, create in wanted.items() if key not in old}
    return (
        [create for key, create in lasting.items() if key not in present],
        _patches(lasting, present, gang.keeps if gang is not None else frozenset()),
        _surplus(view, lasting, present),
    )


def _patches(wanted: dict[Address, Create], present: dict[Address, Extra], keeps: frozenset[str]) -> list[Patch]:
    patches = []
    for key, create in wanted.items():
        extra, noted = present.get(key), create.body["metadata"]["annotations"]
        if extra is None or removal.going(extra) or (extra.metadata.annotations or {}).get(DIGEST) == noted[DIGEST]:
            continue
        body = _update(create.body, keeps)
        body["metadata"] = {"annotations": {name: noted[name] for name in (DIGEST, WORLD, PLACES) if name in noted}}
        meta, why = extra.metadata, "kept in step with the job"
        patches.append(Patch(extra.kind, meta.name, meta.uid, body, why, api=extra.api_version))
    return patches


def _surplus(view: View, wanted: dict[Address, Create], present: dict[Address, Extra]) -> list[Delete]:
    surplus = [
        extra
        for key, extra in sorted(present.items())
        if key not in wanted and not removal.going(extra) and not gate.holds(view.job, extra)
    ]
    return [removal.of_extra(extra, "the job no longer has it") for extra in surplus]


def _update(body: Body, keeps: frozenset[str]) -> Body:
    """What a child of the whole job should be, without what is said only once."""
    parts = {name: part for name, part in body.items() if name not in ("apiVersion", "kind", "metadata")}
    if keeps and "spec" in parts:
        parts["spec"] = {name: value for name, value in parts["spec"].items() if name not in keeps}
    return parts
