# SPDX-License-Identifier: Apache-2.0
"""What happens to jobs, as one table: manifests, and what people do meanwhile. Each must end alike wherever it runs.

Pods are programs that exit as told, and carry annotations by which fake nodes play the same. `plain` takes off a status
what cannot be the same in two places: times, UIDs, nodes.
"""

from collections.abc import Sequence
from typing import Any

from cluster_pods import PREFIX
from msgspec import Struct

Body = dict[str, Any]
API = "batch.tensorstack.dev/v1beta1"
FOREVER = "forever"
#: Long enough to be seen running everywhere.
BRIEF = "0.7"
#: The same for each attempt of a job whose history is compared, also on a busy machine.
ATTEMPT = "4"
#: Seconds after which all pods of a job run, also on a busy machine: what ends the job ends no earlier.
LATER = "8"
#: Which try this is, by the lines of a file of its own. GenericJob's variables begin like a shell's `$(`: none here.
_PROGRAM = """
file={folder}/{job}-$(type)-$(rank); echo >> $file; try=`wc -l < $file`
pick() {{ n=$try; while [ $n -gt 1 ] && [ $# -gt 1 ]; do shift; n=`expr $n - 1`; done; picked=$1; }}
pick {runs}; [ $picked = forever ] && picked=3600
sleep $picked & wait; pick {exits}; exit $picked
"""


class Step(Struct, frozen=True):
    """Once the job is in that phase, with so many running: somebody scales, pauses or resumes it."""

    phase: str
    running: int
    do: str
    number: int = 0


class Scenario(Struct, frozen=True):
    """A job, what is done to it, and how it ends."""

    name: str
    roles: tuple[Body, ...]
    spec: Body
    steps: tuple[Step, ...] = ()
    end: str = "Succeeded"

    def body(self, folder: str) -> Body:
        """The manifest; its programs keep their counts in that folder."""
        roles = [_filled(one, folder, self.name) for one in self.roles]
        head = {"apiVersion": API, "kind": "GenericJob", "metadata": {"name": self.name}}
        return {**head, "spec": {"replicaSpecs": roles, **self.spec}}


def role(
    name: str = "worker",
    replicas: int = 1,
    *,
    exits: str = "0",
    runs: str = BRIEF,
    restart: tuple[str, int] = ("OnFailure", 0),
    init: int = 0,
) -> Body:
    """Replicas of one type. `exits` and `runs` are by try, with commas: the last stands for all further."""
    notes = {PREFIX + "exit": exits, PREFIX + "runs": runs, PREFIX + "starts": "0.1"}
    program = _PROGRAM.replace("{runs}", runs.replace(",", " ")).replace("{exits}", exits.replace(",", " "))
    spec: Body = {"containers": [_container("main", program)], "terminationGracePeriodSeconds": 1}
    if init:
        notes[PREFIX + "init"] = str(init)
        spec["initContainers"] = [_container("prepare", f"exit {init}")]
    policy = {"policy": restart[0], "limit": restart[1]}
    return {
        "type": name,
        "replicas": replicas,
        "restartPolicy": policy,
        "template": {"metadata": {"annotations": notes}, "spec": spec},
    }


def _container(name: str, program: str) -> Body:
    return {"name": name, "image": "none", "command": ["sh", "-c", program]}


def _filled(one: Body, folder: str, job: str) -> Body:
    spec = one["template"]["spec"]
    main = spec["containers"][0]
    program = main["command"][2].format(folder=folder, job=job)
    spec = {**spec, "containers": [{**main, "command": ["sh", "-c", program]}]}
    return {**one, "template": {**one["template"], "spec": spec}}


def _all(name: str, *roles: Body, end: str = "Succeeded", steps: Sequence[Step] = (), **spec: Any) -> Scenario:
    return Scenario(name, roles, {"cleanUpPolicy": "Unfinished", **spec}, tuple(steps), end)


FIRST = {"worker": [0]}
PAUSE = {"pause": {"enabled": False, "resumeSpecs": [{"type": "worker", "skipInitContainer": True}]}}

SCENARIOS = (
    _all("success", role(replicas=3)),
    _all("services", role(replicas=2), service={"ports": [{"name": "http", "port": 8000}]}),
    _all("failure", role(runs=LATER, exits="3"), role("other", 2, runs=FOREVER), end="Failed"),
    _all("failure-kept", role(exits="3"), cleanUpPolicy="None", end="Failed"),
    _all("killed", role(exits="139"), end="Failed"),
    _all("never", role(exits="1", restart=("Never", 5)), end="Failed"),
    _all("restarted", role(exits="1,0", runs=ATTEMPT, restart=("OnFailure", 2)), role("other", 2, runs="12")),
    _all("given-up", role(exits="1", runs=ATTEMPT, restart=("OnFailure", 2)), end="Failed"),
    _all("always", role(exits="0", runs=ATTEMPT, restart=("Always", 2))),
    _all("success-rule", role(runs=LATER), role("ps", 2, runs=FOREVER), successRules=[FIRST], cleanUpPolicy="All"),
    _all(
        "failure-rule", role(runs=FOREVER), role("ps", runs=LATER, exits="2"), failureRules=[{"ps": [0]}], end="Failed"
    ),
    _all(
        "out-of-reach",
        role(runs=LATER, exits="1"),
        role("ps", runs=FOREVER),
        successRules=[FIRST],
        failureRules=[{"ps": [0]}],
        end="Failed",
    ),
    _all(
        "tolerated",
        role(runs=LATER),
        role("extra", exits="4"),
        successRules=[FIRST],
        failureRules=[FIRST],
    ),
    _all("clean-all", role(replicas=2), cleanUpPolicy="All"),
    _all("kept-running", role(runs=LATER), role("ps", 2, runs=FOREVER), successRules=[FIRST], cleanUpPolicy="None"),
    _all("kept-failed", role(runs=LATER, exits="3"), role("ps", 2, runs=FOREVER), cleanUpPolicy="None", end="Failed"),
    _all("unfinished", role(runs=LATER), role("ps", 2, runs=FOREVER), successRules=[FIRST]),
    _all("init-fails", role(init=5), end="Failed"),
    _all("gang", role(replicas=2), scheduler={"t9kScheduler": {"queue": "default"}}),
    _all(
        "paused",
        role(replicas=2, runs=f"{FOREVER},{ATTEMPT}"),
        runMode=PAUSE,
        steps=[Step("Running", 2, "pause"), Step("Paused", 0, "resume")],
    ),
    _all("grown", role(runs=LATER), steps=[Step("Running", 1, "scale", 3)]),
    _all("shrunk", role(replicas=3, runs=LATER), steps=[Step("Running", 3, "scale", 1)]),
)

# -- comparing -----------------------------------------------------------------------------------------------------

#: Never the same in two places, where they are text.
_ELSEWHERE = frozenset({"lastTransitionTime", "at", "accepted", "started", "running", "ended", "until", "uid", "node"})
_ELSEWHERE |= {"begun", "start", "end"}
#: Milliseconds of the history, and the nodes of an attempt.
_MEASURED = frozenset({"productive", "nodes"})
#: The class of an exit code above 128 depends on the signal, which a kubelet does not tell.
_BY_SIGNAL = frozenset({"Crashed", "Killed"})
#: By SIGTERM or SIGKILL, after they were deleted.
_ENDED = (143, 137)


def plain(part: Any, key: str = "") -> Any:
    """A status without times, UIDs and nodes: only that they are there."""
    if isinstance(part, dict):
        # What a pod that is removed still had to say may come too late to be told.
        unsaid = {"exitCode"} if part.get("exitCode") in _ENDED else set()
        # Our supervisor knows whether a signal ended the program; a kubelet does not tell.
        unsaid |= {"signal", *_MEASURED}
        # The next pass after a pod was created waits a second, so a pod may fail before a pass has seen it.
        unsaid |= {"reached"} if part.get("failed") else set()
        if part.get("code", 0) > 128:
            unsaid |= {"message", "action"}
        if key == "lost":
            return sorted(part)
        return {name: plain(value, name) for name, value in part.items() if name not in unsaid}
    if isinstance(part, list):
        found = [plain(one) for one in part]
        # Two that fail in one moment are told in either order.
        return (
            sorted(found, key=lambda one: (one["role"], one["attempt"], one["index"])) if key == "failures" else found
        )
    if key in ("class", "cause") and part in _BY_SIGNAL:
        return "ProgramError"
    elsewhere = (key in _ELSEWHERE and isinstance(part, str)) or key == "lost"
    return "…" if elsewhere else part
