"""Every kind of request that vLLM takes.

Also whether its counters and its plug-in's reports agree to the token.
"""

from collections import Counter

import aiohttp

from tests.demo.http_traffic import each_sent
from tests.requests.plain_receiver import COUNTS

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 20}},
    "required": ["a"],
}
STRUCTURED = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
}
STREAM, USAGE = {"stream": True}, {"stream_options": {"include_usage": True}}
TEMPERATURES = (0, 0.2, 0.5, 0.8, 1.0, None)
DEFAULT = 100  # the lab's models name none, so vLLM's own default is in effect
IGNORE = {"ignore_eos": True}


def every_request(temperature):
    """Each kind of request at a temperature.

    (path, body, choices that the engine sees, whether the client leaves early)
    """
    named = {"model": "lab"} | ({} if temperature is None else {"temperature": temperature})
    text = f"draft a few tokens and verify {temperature} of them with the large model"
    chat = named | {"messages": [{"role": "user", "content": text}]}
    prompt = named | {"prompt": text}
    more = []
    if temperature != 0:  # before vLLM 0.29 a greedy request with n = 2 is refused
        more = [("/v1/completions", prompt | IGNORE | {"max_tokens": 24, "n": 2}, 2, False)]

    return [
        *more,
        ("/v1/chat/completions", chat | IGNORE | {"max_tokens": 40}, 1, False),
        ("/v1/chat/completions", chat | IGNORE | {"max_tokens": 33} | STREAM, 1, False),
        ("/v1/chat/completions", chat | IGNORE | {"max_tokens": 21} | STREAM | USAGE, 1, False),
        ("/v1/completions", prompt | IGNORE | {"max_tokens": 64}, 1, False),
        ("/v1/completions", prompt | IGNORE | {"max_tokens": 1}, 1, False),
        ("/v1/completions", prompt | {"max_tokens": 30, "stop": ["e", "n"]}, 1, False),
        (
            "/v1/completions",
            named | IGNORE | {"prompt": [text, text[:40]], "max_tokens": 24},
            2,
            False,
        ),
        ("/v1/completions", prompt | IGNORE | {"max_tokens": 600} | STREAM, 1, True),
        ("/v1/completions", prompt | {"max_tokens": 24} | STRUCTURED, 1, False),
        ("/v1/responses", named | {"input": text, "max_output_tokens": 24}, 1, False),
        ("/v1/messages", chat | {"max_tokens": 24}, 1, False),
        ("/v1/completions", prompt | {"max_tokens": -5}, 0, False),
        ("/v1/completions", prompt | {"max_tokens": 5_000_000}, 0, False),
    ]


class SentRequests:
    """What was sent, and what the engine must have seen of it."""

    def __init__(self, url):
        self._url = url
        self.sent, self.statuses, self.choices, self.unanswered = 0, Counter(), Counter(), Counter()

    async def send(self, http, at_temperature):
        temperature, (path, body, choices, leaves) = at_temperature
        self.sent += 1
        try:
            async with http.post(self._url + path, json=body) as response:
                self.statuses[path, response.status] += 1
                if leaves:
                    await response.content.readany()
                    return self._count(temperature, choices)
                await response.read()
                if response.status == 200:
                    self._count(temperature, choices)
        except aiohttp.ClientError:
            self.unanswered[path] += 1

    def _count(self, temperature, choices):
        self.choices[DEFAULT if temperature is None else round(100 * temperature)] += choices


async def traffic(url):
    """Sends requests of all kinds at all temperatures.

    Returns what was sent, once all of it is answered.
    """
    sent = SentRequests(url)
    requests = [
        (temperature, request)
        for temperature in TEMPERATURES
        for request in every_request(temperature)
    ]
    # A connection each: one that is kept may be closed by vLLM as a request is sent on it.
    await each_sent(requests, sent.send, 6, connector=aiohttp.TCPConnector(force_close=True))
    return sent


def compare(receiver, sent, theirs):
    """What is not equal, as text; "" if all is."""
    problems = []
    if receiver.total != theirs:
        problems.append(f"vLLM counted {theirs}, the plug-in reported {receiver.total}")
    by_temperature = receiver.by_temperature()
    summed = tuple(sum(row[name] for row in by_temperature.values()) for name in COUNTS)
    if summed != theirs:
        problems.append(f"by temperature they are {summed}")
    for life in receiver.lives.values():
        sums = {table: life.sums(table) for table in ("prompt_tokens", "output", "adapter")}
        sums["finished request"] = life.finished()
        problems += [
            f"by {name} {counts}"
            for name, counts in sums.items()
            if counts != life.sums("temperature")
        ]
    requests = {key: row["requests"] for key, row in by_temperature.items()}
    if requests != sent.choices:
        problems.append(f"requests: sent {dict(sent.choices)}, reported {requests}")
    return "; ".join(problems)


def row(receiver, sent, theirs, served):
    """A row of a table in docs/measurements/plugin.md, for ``served``.

    Then a line by temperature and status.
    """
    vllm = next(iter(receiver.lives.values())).hello["vllm"]
    numbers = [" · ".join(map(str, counts)) for counts in (theirs, receiver.total)]
    columns = [vllm, served, len(receiver.lives), sent.sent, sum(sent.choices.values()), *numbers]
    yield f"| {' | '.join(map(str, columns))} | {compare(receiver, sent, theirs) or 'equal'} |"
    for key, sums in sorted(receiver.by_temperature().items()):
        yield f"    {key / 100}: {dict(sums)}"
    yield (
        f"    { {' '.join(map(str, key)): count for key, count in sorted(sent.statuses.items())} }"
    )
