"""The sizes of target and draft that vLLM's own configuration has."""

import json
from pathlib import Path

from tests.scheduler.engine import MODELS, make_scheduler


def dimensions(plugin, model):
    """Those in the model's files."""
    config = json.loads((Path(MODELS) / model / "config.json").read_text())
    return {name: value for name, value in config.items() if name in plugin.SIZES}


def test_hello_has_the_sizes_in_the_models_files(sidecar, installed):
    """By them the sidecar estimates what breaks even."""
    plugin = installed()
    scheduler = make_scheduler(head=True)
    sidecar.until(lambda: sidecar.engine().state, "observing")
    hello = sidecar.engine().hello
    assert scheduler.num_spec_tokens

    configuration = hello["configuration"]
    assert dimensions(plugin, "target").items() <= configuration["sizes"].items()
    assert dimensions(plugin, "eagle").items() <= hello["speculation"]["draft_sizes"].items()
    assert (configuration["device"], configuration["is_moe"]) == ("cpu", False)
    assert configuration["is_hybrid"] is False
    assert configuration["tensor_parallel_size"] == 1
