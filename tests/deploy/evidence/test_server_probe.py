import asyncio

import httpx

from deploy.evidence.measured import ServerFigures
from deploy.evidence.server_probe import MetricsProbe, samples_of
from tests.deploy.evidence.simulated import VirtualClock, run_virtually

SCRAPE = """# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{{model_name="m",engine="0",path="speculative"}} {preemptions}
vllm:num_preemptions_total{{model_name="m",engine="0",path="baseline"}} 1000
# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{{path="speculative"}} {rounds}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{path="speculative"}} {usage}
# TYPE fleet_draft_seconds gauge
fleet_draft_seconds{{path="speculative"}} {draft}
"""


def watch(answers: list[httpx.Response], seconds: float) -> ServerFigures:
    left = iter(answers)

    async def work() -> ServerFigures:
        transport = httpx.MockTransport(lambda request: next(left))
        async with httpx.AsyncClient(transport=transport, base_url="http://fleet") as http:
            probe = MetricsProbe(http, None, settle_seconds=0.5, key=None)
            is_over = asyncio.Event()
            asyncio.get_running_loop().call_later(seconds, is_over.set)
            return await probe.watch("speculative", is_over)

    return run_virtually(VirtualClock(), work())


def scrape(preemptions: int, rounds: int, usage: float, draft: float) -> httpx.Response:
    return httpx.Response(200, text=SCRAPE.format(preemptions=preemptions, rounds=rounds, usage=usage, draft=draft))


def test_counters_are_what_was_added_and_gauges_what_was_seen_of_this_path_alone() -> None:
    looks = [scrape(2, 10, 0.1, 0.5), scrape(2, 50, 0.9, 0.004), scrape(3, 80, 0.2, 0.006), scrape(5, 100, 0.0, 0.005)]
    figures = watch(looks, seconds=1.5)
    assert figures == ServerFigures(kv_usage=0.9, preemptions=3, draft_seconds=0.005, rounds=90)


def test_a_server_without_metrics_leaves_the_figures_unknown() -> None:
    assert watch([httpx.Response(404)] * 4, seconds=0.5) == ServerFigures()
    assert watch([httpx.Response(200, text="<html>not metrics</html>")] * 4, seconds=0.5) == ServerFigures()


def test_a_server_that_knows_no_paths_is_read_as_a_whole() -> None:
    text = 'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.5\n'
    assert samples_of("any", text) == {"vllm:kv_cache_usage_perc": 0.75}


def test_a_server_that_cannot_tell_how_long_accepting_takes_says_0_and_nothing_is_known() -> None:
    text = '# TYPE fleet_accept_seconds gauge\nfleet_accept_seconds{path="speculative"} '
    assert watch([httpx.Response(200, text=f"{text}0\n")] * 4, seconds=0.5).accept_seconds is None
    assert watch([httpx.Response(200, text=f"{text}0.002\n")] * 4, seconds=0.5).accept_seconds == 0.002


def test_the_time_of_a_draft_that_was_not_made_is_unknown_though_its_gauge_stands() -> None:
    figures = watch([scrape(0, 10, 0.1, 0.004)] * 4, seconds=1.5)
    assert figures.rounds == 0
    assert figures.draft_seconds is None


def test_gpu_memory_is_the_most_that_was_seen_and_unknown_without_a_gpu() -> None:
    text = '# TYPE fleet_gpu_memory_bytes gauge\nfleet_gpu_memory_bytes{path="speculative"} '
    sizes = ("1.0e+09", "3.0e+09", "3.0e+09", "3.0e+09")
    assert watch([httpx.Response(200, text=f"{text}{size}\n") for size in sizes], 1.5).gpu_memory_bytes == 3 * 10**9
    assert watch([httpx.Response(200, text=f"{text}0\n")] * 4, seconds=0.5).gpu_memory_bytes is None
