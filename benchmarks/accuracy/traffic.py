"""``python -m benchmarks.accuracy.traffic SCENE --url http://VLLM --out DIR``: records a hold-out on the lab's vLLM.

Writes ``scrapes.jsonl.gz`` and ``requests.jsonl.gz`` in the format of ``tests/data/recordings/README.md``; pages
hold only the families that attribution reads. The lab must be serving the scene's method and K, with which its name
begins.
"""

import argparse
import asyncio
import gzip
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

_KEPT = (
    "process_start_time_seconds",
    "vllm:spec_decode_",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:generation_tokens",
    "vllm:iteration_tokens_total",
)
_WORDS = "speculative decoding drafts a few tokens with a small model and verifies them with the large one".split()  # noqa: SIM905 - words


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One model of traffic for ``seconds``.

    Open loop: Poisson arrivals at ``rate`` per second, which swings by ``swing`` (a share) in ``period`` seconds, and
    ``bursts`` of ``burst_size`` requests. Closed loop: ``users``, who pause for exponential times after every reply
    (``pause``: mean seconds). ``tokens``: median and sigma of the log-normal lengths; ``prompt``: fewest and most
    words; ``batch``: share of requests that are long, greedy and not streamed; the others are shares too.
    """

    rate: float = 0.0
    swing: float = 0.0
    period: float = 60.0
    users: int = 0
    pause: float = 1.0
    seconds: float = 90.0
    bursts: int = 0
    burst_size: int = 6
    tokens: tuple[float, float] = (60, 0.6)
    prompt: tuple[int, int] = (10, 60)
    batch: float = 0.0
    streamed: float = 0.5
    greedy: float = 0.2
    coldest: float = 0.0
    hottest: float = 1.3
    no_temperature: float = 0.0
    aborted: float = 0.0
    poll: float = 0.5
    seed: int = 1


SCENES = {
    # The first hold-out; three thresholds were set with it in view.
    "draft_model-k3-poisson": Scene(rate=1.2, seconds=80, seed=11),
    "draft_model-k4-long-prompts": Scene(
        rate=0.9, seconds=80, prompt=(20, 420), tokens=(70, 0.7), streamed=0.3, no_temperature=0.15, seed=12
    ),
    "draft_model-k2-bursts-aborts": Scene(
        rate=0.8, seconds=80, bursts=5, burst_size=10, aborted=0.12, tokens=(50, 0.8), seed=13
    ),
    "draft_model-k6-trickle-whole": Scene(rate=0.45, seconds=100, tokens=(60, 0.9), streamed=0.0, poll=1.0, seed=14),
    "draft_model-k3-two-servers-poisson": Scene(rate=1.1, seconds=80, streamed=0.3, tokens=(80, 0.5), seed=18),
    "ngram-k4-poisson": Scene(rate=1.8, tokens=(70, 0.7), no_temperature=0.1, seed=15),
    "ngram-k3-bursts": Scene(
        rate=1.0, seconds=80, bursts=7, burst_size=8, tokens=(60, 0.8), streamed=0.3, aborted=0.1, seed=16
    ),
    "ngram-k6-long-prompts": Scene(rate=1.4, prompt=(20, 420), greedy=0.4, hottest=1.0, seed=17),
    "ngram-k5-two-modes": Scene(rate=1.5, seconds=100, greedy=0.4, coldest=0.5, hottest=1.0, tokens=(90, 0.5), seed=19),
    # The second; nothing was chosen with it in view.
    "draft_model-k3-users": Scene(users=9, pause=3.0, tokens=(80, 0.7), streamed=0.8, seed=21),
    "draft_model-k5-tides": Scene(rate=0.9, swing=0.9, period=45, tokens=(60, 0.9), no_temperature=0.1, seed=22),
    "draft_model-k4-batch-and-chat": Scene(
        rate=0.8, batch=0.3, tokens=(40, 0.8), streamed=0.9, greedy=0.0, coldest=0.4, hottest=1.1, seed=23
    ),
    "ngram-k4-users": Scene(users=10, pause=2.0, tokens=(90, 0.7), streamed=0.8, seed=24),
    "ngram-k3-tides": Scene(rate=1.6, swing=0.9, period=30, tokens=(70, 0.9), greedy=0.4, seed=25),
}


def arrivals(scene: Scene, rng: random.Random) -> Iterator[float]:
    """Times of the open loop's requests, seconds from the start, in order."""
    times, now, highest = [], 0.0, scene.rate * (1 + scene.swing)
    while highest and (now := now + rng.expovariate(highest)) < scene.seconds:
        # Thinning: the rate swings below the highest.
        if rng.random() * highest < scene.rate * (1 + scene.swing * math.sin(2 * math.pi * now / scene.period)):
            times.append(now)
    for number in range(scene.bursts):
        at = scene.seconds * (number + rng.random()) / scene.bursts
        times += [at + rng.expovariate(20) for _ in range(scene.burst_size)]
    yield from sorted(times)


def planned(scene: Scene, at: float, rng: random.Random) -> dict[str, Any]:
    """A request at one moment: hot ones become more likely over time, as a day's mix drifts too."""
    warm = rng.betavariate(1 + 1.5 * at / scene.seconds, 2.5 - 1.5 * at / scene.seconds)
    is_batch = rng.random() < scene.batch
    is_greedy = is_batch or rng.random() < scene.greedy
    temperature = 0.0 if is_greedy else round(scene.coldest + (scene.hottest - scene.coldest) * warm, 3)
    median, sigma = (200, 0.3) if is_batch else scene.tokens
    return {
        "chat": rng.random() < 0.5,
        "temperature": None if rng.random() < scene.no_temperature else temperature,
        "stream": not is_batch and rng.random() < scene.streamed,
        "max_tokens": max(4, min(500, round(rng.lognormvariate(0, sigma) * median))),
        "prompt": " ".join(rng.choices(_WORDS, k=rng.randint(*scene.prompt))) + f" {rng.randrange(10**6)}",
        "abort": rng.uniform(0.3, 4.0) if rng.random() < scene.aborted else None,
    }


class Traffic:
    """One run of a scene; ``done`` and ``pages`` are the lines to write."""

    def __init__(self, scene: Scene, url: str, session: aiohttp.ClientSession) -> None:
        self._scene, self._url, self._session = scene, url, session
        self.done: list[dict[str, Any]] = []
        self.pages: list[dict[str, Any]] = []

    async def run(self) -> None:
        """Polls from before the first request until after the last."""
        rng = random.Random(self._scene.seed)
        await self._send(planned(self._scene, 0.0, rng) | {"abort": None})
        self.done.clear()  # the first request only warmed vLLM up
        polling = asyncio.create_task(self._poll())
        await asyncio.sleep(2)
        begun = time.time()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._scene.users):
                tasks.create_task(self._user(begun, random.Random(rng.random())))
            for at in arrivals(self._scene, rng):
                await asyncio.sleep(max(begun + at - time.time(), 0))
                tasks.create_task(self._send(planned(self._scene, at, rng)))
        await asyncio.sleep(2.5)
        polling.cancel()

    async def _user(self, begun: float, rng: random.Random) -> None:
        while (at := time.time() - begun) < self._scene.seconds:
            await asyncio.sleep(rng.expovariate(1 / self._scene.pause))
            await self._send(planned(self._scene, min(at, self._scene.seconds), rng))

    async def _poll(self) -> None:
        while True:
            start = time.time()
            async with self._session.get(f"{self._url}/metrics") as reply:
                rows = (await reply.text()).splitlines()
            kept = [one for one in rows if one.removeprefix("# TYPE ").startswith(_KEPT) and "_created" not in one]
            self.pages.append({"start": start, "end": time.time(), "text": "\n".join(kept) + "\n"})
            await asyncio.sleep(max(self._scene.poll - (time.time() - start), 0.05))

    async def _send(self, plan: dict[str, Any]) -> None:
        body: dict[str, Any] = {"model": "lab", "ignore_eos": True} | {
            key: plan[key] for key in ("max_tokens", "stream")
        }
        body |= (
            {"messages": [{"role": "user", "content": plan["prompt"]}]} if plan["chat"] else {"prompt": plan["prompt"]}
        )
        body |= {} if plan["temperature"] is None else {"temperature": plan["temperature"]}
        body |= {"stream_options": {"include_usage": True}} if plan["stream"] else {}
        line: dict[str, Any] = {
            "id": len(self.done),
            "path": "/v1/chat/completions" if plan["chat"] else "/v1/completions",
        }
        line |= {key: plan[key] for key in ("temperature", "stream", "max_tokens")}
        line |= {"start": time.time(), "chunks": [], "usage": None, "speculative_decoding": None}
        self.done.append(line)
        try:
            async with asyncio.timeout(plan["abort"]), self._session.post(self._url + line["path"], json=body) as reply:
                reply.raise_for_status()
                async for raw in reply.content:
                    text = raw.decode().strip().removeprefix("data: ")
                    if text and text != "[DONE]":
                        _note(line, json.loads(text), streamed=plan["stream"])
        except TimeoutError:
            line |= {"outcome": "aborted", "speculative_decoding": None}
        line["end"] = time.time()


def _note(line: dict[str, Any], event: dict[str, Any], *, streamed: bool) -> None:
    """Takes in a reply, or one event of it."""
    if streamed and event.get("choices"):
        line["chunks"].append(round(time.time() - line["start"], 4))
    line["usage"] = event.get("usage") or line["usage"]
    line["speculative_decoding"] = (event.get("metrics") or {}).get("speculative_decoding")


async def record(scene: Scene, url: str, out: Path) -> None:
    """Records a scene into a folder."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(600), read_bufsize=2**20
    ) as session:
        traffic = Traffic(scene, url, session)
        await traffic.run()
    out.mkdir(parents=True, exist_ok=True)
    _write(out / "requests.jsonl.gz", sorted(traffic.done, key=lambda line: float(line["end"])))
    _write(out / "scrapes.jsonl.gz", traffic.pages)
    print(f"{len(traffic.done)} requests, {len(traffic.pages)} polls")


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.writelines(json.dumps(line).encode() + b"\n" for line in lines)


def main() -> None:
    """Records the scene that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scene", choices=SCENES)
    parser.add_argument("--url", required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    asyncio.run(record(SCENES[arguments.scene], arguments.url, arguments.out))


if __name__ == "__main__":
    main()
