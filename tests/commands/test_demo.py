import asyncio
import signal

import aiohttp

from tests.commands.commands_tools import unused_port


async def test_demo_prints_where_to_look_and_ends_by_itself(finished):
    code, out, err = await finished("demo", "--duration", "5s", SPECDEC_LISTEN="127.0.0.1:0")
    assert code == 0, err
    assert "  look        http://127.0.0.1:" in out
    completed, failed = [int(word) for word in out.splitlines()[-1].split() if word.isdigit()]
    assert completed > 0
    assert failed == 0


async def test_losing_demo_keeps_acceptance_below_a_half_until_it_is_interrupted(program, http):
    address = f"127.0.0.1:{unused_port()}"
    arguments = {"SPECDEC_LISTEN": address, "SPECDEC_THRESHOLDS__MIN_REQUESTS": "1"}
    async with program("demo", "--losing", **arguments) as process, asyncio.timeout(120):
        await process.stdout.readline()
        verdicts = {}
        while not verdicts or "insufficient_data" in verdicts.values():
            await asyncio.sleep(0.2)
            try:
                async with http.get(f"http://{address}/api/v1/status") as response:
                    (target,) = (await response.json())["targets"]
            except aiohttp.ClientConnectionError:
                continue
            buckets = [bucket for model in target["requests"]["models"] for bucket in model["temperatures"].items()]
            verdicts = {label: bucket["verdict"] for label, bucket in buckets if bucket["requests"] >= 5}
        assert set(verdicts.values()) == {"net_negative"}
        assert all(engine["acceptance"]["rate"] < 0.5 for engine in target["engines"])
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
