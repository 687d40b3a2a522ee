from __future__ import annotations

import io

from rich.console import Console

from deploy.explain_view import evidence_line, explanation_view, samples_line
from tests.deploy.statuses import explanation, verdict


def shown() -> str:
    console = Console(width=240, file=io.StringIO())
    with console.capture() as capture:
        console.print(explanation_view(explanation()))
    return capture.get()


def test_a_person_reads_question_numbers_test_and_outlook():
    told = shown()
    for part in (
        "itl_p95: insufficient - about 410 more requests",
        "'spec-1', attempt 1, baking at 25 %",
        "is it slower?",
        "+4.2 %, 95 % interval -1.3 % … +9.8 %",
        "e-value 1.83, trips at 60 (the chance that a canary like that ever gets there, however long it waits or is "
        "watched, is at most 1.7 %); at this pace in 13m00s",
        "312 seen, about 410 more needed, enough in 7m01s at the present rate",
        "it goes back",
        "seen through fog",
        "41.2 ms",
    ):
        assert part in told, told


def test_what_needs_no_statistics_shows_no_evidence():
    hard = explanation(verdict=verdict(e_value=None, threshold=None), error_chance=None, readings=[])
    assert evidence_line(hard) == ""
    assert samples_line(verdict(samples=3, needed=0, eta_seconds=None)) == "3 seen"
