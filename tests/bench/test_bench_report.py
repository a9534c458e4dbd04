# SPDX-License-Identifier: Apache-2.0
"""The figures of the comparison: medians, own cost, paired ratios, targets, growth."""

import pytest
from bench_runs import RUNS, run
from report import OWN, RATE, Results, Spread, Verdict, new_ms, ratio, verdicts

RESULTS = Results(RUNS)


def verdict(results: Results, what: str) -> Verdict:
    return next(one for one in verdicts(results) if one.what.startswith(what))


def test_own_cost_is_the_cpu_of_three_processes_without_that_of_no_operator() -> None:
    # Rounds cost 32, 35.2 and 38.4 ms per job; without an operator they cost 12, 13.2 and 14.4 ms.
    found = OWN.values(RESULTS, "500x4", "ours")
    assert found == pytest.approx({0: 32 - 13.2, 1: 35.2 - 13.2, 2: 38.4 - 13.2})


def test_own_cost_is_unknown_without_a_run_without_operator() -> None:
    assert OWN.text(RESULTS, "1x200", "ours") == "-"


def test_a_ratio_is_that_of_the_medians_and_its_range_that_of_the_rounds() -> None:
    runs = [run(number=0, wall=10.0), run(number=1, wall=20.0), run(number=2, wall=40.0)]
    runs += [run(who="peer", number=number, wall=wall) for number, wall in enumerate((30.0, 20.0, 20.0))]
    found = ratio(Results(runs), RATE, "500x4", ("ours", "peer"))
    assert found == Spread(1.0, 0.5, 3.0)


def test_a_spread_without_range_is_one_number() -> None:
    assert Spread(2.0, 1.96, 2.04).text(1) == "2.0"
    assert Spread(2000.0, 1900.0, 2100.0).text(0) == "2,000 [1,900, 2,100]"


@pytest.mark.parametrize(
    ("what", "ratio_text", "reached"),
    [
        ("own cost per job, 500 x 4", "0.43", True),  # 22.0 ms and 50.6 ms
        ("jobs/s, 500 x 4", "1.25", True),
        ("submit → all pods p99, 500 x 4", "0.50", True),
        ("time to all pods, 1 x 200", "0.50", True),
        ("wall time at equal limits", "0.80", False),
        ("wall time as shipped", "0.80", True),
        ("CPU of the operator per job, 1,000 x 4", "-", None),
        ("jobs/s compared with the floor", "0.80", False),
        ("terminal events stored", "-", True),
        ("jobs seen Running", "-", True),
    ],
)
def test_targets(what: str, ratio_text: str, *, reached: bool | None) -> None:
    found = verdict(RESULTS, what)
    assert (found.ratio.partition(" ")[0], found.reached) == (ratio_text, reached)


def test_a_bound_is_reached_at_its_value_and_missed_beyond() -> None:
    for p99, reached in ((3.0, True), (3.01, False)):
        results = Results([run(p99=p99), run(who="peer", p99=4.0)])
        assert verdict(results, "submit → all pods p99").reached is reached


def test_one_lost_event_in_one_run_misses_the_target() -> None:
    results = Results([*RUNS, run("2000x1", events=0.999, running=1.0)])
    assert verdict(results, "terminal events stored").reached is False
    assert verdict(results, "jobs seen Running").reached is True


def test_nothing_is_reached_without_results() -> None:
    assert {one.reached for one in verdicts(Results([]))} == {None}


def test_the_cost_of_a_new_job_excludes_what_the_operator_uses_at_rest() -> None:
    one = run("present-100", jobs=100, cpu_quiet={"operator": 1.0}, rest={"operator": 0.02}, wall=8.0, tail=2.0)
    assert new_ms(one, "operator") == pytest.approx(1000 * (1.0 - 0.02 * 10) / 100)
