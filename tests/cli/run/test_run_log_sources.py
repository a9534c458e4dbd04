# SPDX-License-Identifier: Apache-2.0
"""Which log files a pod has, as its containers come, are restarted and go."""

from run_objects import container, ended, pod

from trainwright.cli.run.follow import LogSources
from trainwright.cli.show.news import ReplicaNews
from trainwright.model.job import Body
from trainwright.model.meta import Key

WHO = ReplicaNews(Key("default", "demo"), "worker", 0, "worker-0", "Running", "demo-worker-0")


def look(sources: LogSources, body: Body, *, gone: bool = False) -> list[tuple[str, bool]]:
    found = sources.forget(body, WHO) if gone else sources.look(body, WHO)
    return [(one.path.removeprefix("/run/logs/demo-worker-0/00000000-"), one.ended) for one in found]


def test_a_log_is_followed_from_start_to_end() -> None:
    sources = LogSources("/run/logs")

    assert look(sources, pod(containers=[container("waiting", reason="ContainerCreating")])) == []
    assert look(sources, pod(containers=[container("running")])) == [("main-0.log", False)]
    assert look(sources, pod(containers=[container("running")])) == []
    assert look(sources, pod(containers=[ended(0)])) == [("main-0.log", True)]
    assert look(sources, pod(containers=[ended(0)])) == []
    assert look(sources, pod(), gone=True) == []


def test_a_container_that_was_never_seen_running() -> None:
    assert look(LogSources("/run/logs"), pod(containers=[ended(0)])) == [("main-0.log", True)]


def test_restarts_in_place_have_logs_of_their_own() -> None:
    sources = LogSources("/run/logs")
    look(sources, pod(containers=[container("running")]))

    waiting = container("waiting", reason="CrashLoopBackOff") | {"lastState": {"terminated": {"exitCode": 1}}}
    assert look(sources, pod(containers=[waiting])) == [("main-0.log", True)]
    assert look(sources, pod(containers=[container("running", restarts=1)])) == [("main-1.log", False)]
    # several in between that nobody saw
    assert look(sources, pod(containers=[container("running", restarts=4)])) == [
        ("main-1.log", True),
        ("main-2.log", True),
        ("main-3.log", True),
        ("main-4.log", False),
    ]
    assert look(sources, pod(containers=[container("running", restarts=3)])) == []


def test_a_restart_that_is_counted_but_not_started_has_no_log() -> None:
    """Else a container that ends soon after that would never be read: nobody may see it run."""
    sources = LogSources("/run/logs")
    look(sources, pod(containers=[container("running")]))

    creating = container("waiting", reason="ContainerCreating", restarts=1)
    assert look(sources, pod(containers=[creating])) == [("main-0.log", True)]
    backing_off = container("waiting", reason="CrashLoopBackOff", restarts=1)
    assert look(sources, pod(containers=[backing_off])) == [("main-1.log", True)]


def test_a_pod_that_goes_takes_its_logs_along() -> None:
    sources = LogSources("/run/logs")
    look(sources, pod(containers=[container("running")]))

    assert look(sources, pod(), gone=True) == [("main-0.log", True)]
    assert look(sources, pod(), gone=True) == []


def test_several_containers_are_told_apart() -> None:
    body = pod(
        spec={"containers": [{"name": "main"}, {"name": "side"}], "initContainers": [{"name": "prepare"}]},
        initContainerStatuses=[ended(0, "prepare")],
        containers=[container("running"), container("running", "side")],
    )
    found = list(LogSources("/run/logs").look(body, WHO))

    assert [one.source.label for one in found] == ["worker-0/prepare", "worker-0/main", "worker-0/side"]
    assert [one.source.container for one in found] == ["prepare", "main", "side"]
    assert [one.ended for one in found] == [True, False, False]
