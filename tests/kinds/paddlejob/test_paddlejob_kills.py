# SPDX-License-Identifier: Apache-2.0
"""An operator that is killed after any of its writes, in each mode: the job comes to the same end, and in every attempt
its pods know each other.
"""

import pytest
from paddlejob_driver import Driver, manifest

from trainwright.model.job import Body
from trainwright.model.plan import Plan


class Mortal(Driver):
    """The operator dies once, after that many writes."""

    fatal = -1

    def step(self, *, dies_after: int | None = None) -> Plan:  # noqa: ARG002 - a fixed moment instead
        left = self.fatal - len(self.writes)
        if left < 0:
            return super().step()
        plan = super().step(dies_after=left)
        if len(self.writes) >= self.fatal:
            self.fatal = -1
        return plan


def know_each_other(world: Driver) -> None:
    """Every pod that runs has read the addresses that its peers have now."""
    pods = world.pods()
    for pod in pods.values():
        told = world.read[pod.metadata.uid]
        ends = told["PADDLE_PSERVERS_IP_PORT_LIST"].split(",") + told["PADDLE_TRAINER_ENDPOINTS"].split(",")
        names = sorted(pods)
        assert len(ends) == len(names)
        for name, end in zip(names, ends, strict=True):
            host = end.rpartition(":")[0]
            assert host in (pods[name].status.pod_ip, f"{name}.lab")


def story(document: Body, fatal: int) -> Mortal:
    """It runs; a worker exits with 101; one more worker is asked for; a server is deleted; all succeed."""
    world = Mortal(document)
    world.fatal = fatal
    world.run()
    know_each_other(world)
    world.exit("demo-worker-1", 101)
    world.wait_out()
    world.run()
    know_each_other(world)
    world.scale("worker", 3)
    world.run()
    know_each_other(world)
    world.vanish("demo-ps-0")
    world.wait_out()
    world.run()
    know_each_other(world)
    for name in world.pods():
        world.exit(name)
    world.wait_out()
    return world


def state(world: Driver) -> Body:
    ledger = world.status["trainwright"]
    epochs = {entry["name"]: (entry.get("epoch"), entry.get("restarts")) for entry in ledger["roles"]}
    return {
        "phase": world.phase,
        "pods": world.names(),
        "services": world.names("Service"),
        "map": world.names("ConfigMap"),
        "entries": epochs,
        "ports": sorted(ledger.get("ports", {})),
    }


@pytest.mark.parametrize("intranet", ["PodIP", "Service", "Host"])
def test_the_end_is_the_same_whenever_the_operator_dies(intranet: str) -> None:
    document = manifest(ps=1, worker=2, intranet=intranet, cleanPodPolicy="Never")
    undisturbed = story(document, -1)
    expected = state(undisturbed)

    assert expected["phase"] == "Completed"
    assert len(undisturbed.writes) > 25
    for fatal in range(len(undisturbed.writes)):
        assert state(story(document, fatal)) == expected, f"killed after {fatal} writes"
