from __future__ import annotations

import asyncio

import replicas.stream_ledger
from replicas.stream_ledger import StreamLedger

LONG = 60.0


async def test_waiting_ends_with_the_stream() -> None:
    ledger = StreamLedger()
    waiting = asyncio.create_task(ledger.finished("a", LONG))
    await asyncio.sleep(0)
    ledger.begin("a")
    await asyncio.sleep(0)
    assert not waiting.done()
    ledger.end("a")
    await waiting


async def test_a_stream_that_is_over_already_is_not_waited_for() -> None:
    ledger = StreamLedger()
    ledger.begin("a")
    ledger.end("a")
    await ledger.finished("a", LONG)


async def test_a_stream_that_never_arrives_is_given_up_and_forgotten() -> None:
    ledger = StreamLedger()
    await ledger.finished("a", 0.0)
    assert await ledger.wait_idle(0.0)
    assert not ledger._lives


async def test_a_waiter_that_is_cancelled_leaves_nothing_and_does_not_disturb_the_stream() -> None:
    ledger = StreamLedger()
    early = asyncio.create_task(ledger.finished("never", LONG))
    ledger.begin("a")
    late = asyncio.create_task(ledger.finished("a", LONG))
    await asyncio.sleep(0)
    early.cancel()
    late.cancel()
    await asyncio.gather(early, late, return_exceptions=True)
    assert not await ledger.wait_idle(0.0)
    ledger.end("a")
    assert await ledger.wait_idle(LONG)
    assert not ledger._lives


async def test_ends_nobody_asks_for_do_not_pile_up() -> None:
    ledger = StreamLedger()
    for number in range(replicas.stream_ledger.REMEMBERED_ENDS + 10):
        ledger.begin(str(number))
        ledger.end(str(number))
    assert len(ledger._ended) == replicas.stream_ledger.REMEMBERED_ENDS
