"""What ``report --profile`` prints of a real vLLM, replayed by another one."""

import json
import shlex
from dataclasses import dataclass
from math import sqrt

import pytest

from tests.demo.http_traffic import send
from tests.lab.conftest import idle, settled, sidecar
from tests.lab.vllm_plugins import SYNTHETIC_ACCEPTANCE, install

pytestmark = pytest.mark.lab

MIX = {0.0: 1, 1.0: 1}
REQUESTS = 160
CLOSE = 0.02
SMALL = 0.01  # standard error of an acceptance length, as a share of it
STANDARD_ERRORS = 3


@dataclass(frozen=True)
class Acceptance:
    """What vLLM itself counted since it started."""

    drafts: int
    rates: tuple[float, ...]  # share of drafts accepted up to and including each position

    @property
    def length(self):
        return 1 + sum(self.rates)


def acceptance(page):
    drafts = page.sum("vllm:spec_decode_num_drafts_total")
    accepted = [
        page.sum("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(position))
        for position in range(3)
    ]
    return Acceptance(int(drafts), tuple(number / drafts for number in accepted))


def standard_error(rates, drafts):
    """Of the acceptance length of so many independent drafts, as a share of it.

    The rate of a position is the probability that at least so many draft tokens are accepted, so
    the mean of their number is the sum of the rates, and the mean of its square that of the rates
    times 1, 3, 5, ...
    """
    mean = sum(rates)
    mean_square = sum((2 * place + 1) * rate for place, rate in enumerate(rates))
    return sqrt((mean_square - mean**2) / drafts) / (1 + mean)


async def ask(url):
    sent = await send(url, MIX, REQUESTS, model="lab")
    assert (sent.failed, sent.completed) == (0, REQUESTS)


async def test_a_vllm_with_the_rates_has_the_acceptance_length_of_production(
    lab, folder, finished, record_property
):
    """Within 2 %, under the same traffic at two temperatures.

    The rates are what happened and the synthetic drafts are independent, so the only error by
    chance is that of the replay.
    """
    production = lab("draft_model", folder=folder)
    await production.start()
    async with sidecar(production) as ours:
        await ask(production.url)
        theirs, _ = await settled(production, ours)
        code, out, err = await finished("report", "--url", ours.url, "--profile")
    production.kill()
    first = acceptance(theirs)

    assert (code, err) == (0, "")
    pasted = [shlex.split(line) for line in out.splitlines() if "--speculative-config" in line]
    together, *by_temperature = pasted
    assert len(by_temperature) == len(MIX)
    rates = json.loads(together[1])["synthetic_acceptance_rates"]
    assert rates == pytest.approx(first.rates, abs=1e-4)

    environment = install(SYNTHETIC_ACCEPTANCE, folder / "synthetic")
    replay = lab("off", *together, environment=environment)  # nothing but what was pasted
    await replay.start()
    await ask(replay.url)
    second = acceptance(await idle(replay.url))

    error = standard_error(rates, second.drafts)
    difference = second.length / first.length - 1
    said = (
        f"lengths {first.length:.3f} and {second.length:.3f} of {first.drafts} and {second.drafts}"
        f" drafts: {difference:+.2%}, standard error {error:.2%}"
    )
    record_property("profile", out)
    record_property("rates", (first.rates, second.rates))
    record_property("said", said)

    assert error < SMALL, said
    assert abs(difference) < CLOSE + STANDARD_ERRORS * error, said
