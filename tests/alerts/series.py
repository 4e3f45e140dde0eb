"""Series as promtool's scenes write them."""

from itertools import groupby
from math import ceil

DAY = 1440  # minutes


def number(value):
    return f"{value:.12g}"


def sampled(phases, seconds, *, grows=False):
    """By scrape, one every ``seconds``: the value of phases of (minutes, value); ``grows``: a counter's, by minute."""
    found, begun, total = {}, 0, 0
    for minutes, value in phases:
        for scrape in range(ceil(begun * 60 / seconds), ceil((begun + minutes) * 60 / seconds)):
            found[scrape] = total + value * (scrape * seconds / 60 - begun) if grows else value
        begun, total = begun + minutes, total + value * minutes
    return found


def values_of(samples, start):
    """The notation for values by scrape from ``start`` on; stale after the last one, as in Prometheus."""
    every = [samples.get(scrape) for scrape in range(max(samples) + 1)]
    texts = ["_"] * start + ["_" if value is None else number(value) for value in every] + ["stale"]
    runs = [(text, len(list(run))) for text, run in groupby(texts)]
    return " ".join(
        text if times == 1 else f"_x{times}" if text == "_" else f"{text}x{times - 1}" for text, times in runs
    )


def named(metric, /, **labels):
    pairs = [f'{key}="{value}"' for key, value in labels.items()]
    return f"{metric}{{{','.join(pairs)}}}"
