# SPDX-License-Identifier: Apache-2.0
"""Simulations of random scenarios: whatever happens, the figures fit together and the outputs can be made."""

from itertools import pairwise
from xml.etree import ElementTree

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import Body, generic, paddle, tensorflow, training

from trainwright.cli.documents import subject_of
from trainwright.cli.simulate.chart import as_svg
from trainwright.cli.simulate.faults import Fault, FaultKind, Scenario, node_name
from trainwright.cli.simulate.simulation import Simulation
from trainwright.cli.simulate.text import as_text
from trainwright.cli.simulate.timeline import Timeline
from trainwright.core.autosize import at_largest_size
from trainwright.kinds.base import load

MANIFESTS = (
    generic(3),
    generic(2, policy="Always", limit=2),
    tensorflow(),
    tensorflow("OnFailure", runPolicy={"backoffLimit": 3}),
    tensorflow("Always", runPolicy={"activeDeadlineSeconds": 700}),
    paddle(),
    training(),
    training("Pod", edlPolicy="Auto", minReplicas=1, maxReplicas=2),
)
NODES = 3
OF_REPLICAS = (FaultKind.FAIL, FaultKind.EVICT, FaultKind.PREEMPT, FaultKind.DELETE)


@st.composite
def simulations(draw: st.DrawFn) -> tuple[Body, Scenario]:
    """A manifest and a scenario."""
    manifest = draw(st.sampled_from(MANIFESTS))
    kind = subject_of(manifest).kind
    assert kind is not None
    roles = at_largest_size(load(kind, manifest).job).roles
    replicas = st.sampled_from([(role.name, index) for role in roles for index in range(role.replicas)])
    times = st.integers(0, 800).map(float)
    lasts = st.none() | times
    faults = st.one_of(
        st.builds(
            lambda kind, at, who, code: Fault(kind, "", at, tuple(sorted(who)), code=code),
            st.sampled_from(OF_REPLICAS),
            times,
            st.sets(replicas, min_size=1),
            st.sampled_from([1, 101, 137]),
        ),
        st.builds(
            lambda at, node, lasts: Fault(FaultKind.LOSE_NODE, "", at, node=node_name(node), lasts=lasts),
            times,
            st.integers(1, NODES),
            lasts,
        ),
        st.builds(lambda at, lasts: Fault(FaultKind.SUSPEND, "", at, lasts=lasts), times, lasts),
    )
    durations = {role.name: draw(st.sampled_from([600.0, 30.0, 0.0, None])) for role in roles}
    room, start = draw(st.sampled_from([0, 1, 2])), draw(st.sampled_from([0.0, 5.0, 60.0]))
    return manifest, Scenario(tuple(draw(st.lists(faults, max_size=6))), durations, NODES, room, start, 7200.0)


def simulated(manifest: Body, scenario: Scenario) -> Timeline:
    kind = subject_of(manifest).kind
    assert kind is not None
    return Simulation("job.yaml", kind, manifest, scenario).run()


@given(simulations())
@settings(max_examples=150)
def test_any_scenario(simulation: tuple[Body, Scenario]) -> None:
    found = simulated(*simulation)

    assert abs(found.time.productive + sum(found.time.lost.values()) - found.time.wall) < 1e-6
    assert all(before.end == after.start for before, after in pairwise(found.phases))
    assert all(before.at <= after.at for before, after in pairwise(found.timeline))
    for bar in found.attempts:
        times = [at for at in (bar.created, bar.started, bar.ended) if at is not None]
        assert times == sorted(times)
    assert all(budget.used <= budget.limit or found.end is not None for budget in found.budgets)
    ElementTree.fromstring(as_svg(found))  # noqa: S314 - we wrote it
    assert as_text(found) == as_text(simulated(*simulation))
    msgspec.json.encode(found)
