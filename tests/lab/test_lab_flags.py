"""The keys and methods that ``check --args`` knows are those of the lab's vLLM."""

import asyncio
import json

import pytest

from sidecar.commands.check.vllm_flags import KEYS, METHODS

pytestmark = pytest.mark.lab

CODE = """
import dataclasses, json, typing
from vllm.config.speculative import SpeculativeConfig, SpeculativeMethod

def flat(one):
    return [part for argument in typing.get_args(one) for part in (flat(argument) or [argument])]

print(json.dumps([[field.name for field in dataclasses.fields(SpeculativeConfig)], flat(SpeculativeMethod)]))
"""


async def test_keys_and_methods_are_those_of_vllm(lab):
    vllm = lab("off")
    await vllm.start()
    python = str(vllm.executable().parent / "python")
    vllm.kill()
    process = await asyncio.create_subprocess_exec(python, "-c", CODE, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(300):
        out, _ = await process.communicate()
    fields, methods = json.loads(out.decode().splitlines()[-1])
    # Set by vLLM itself, or there only to be refused.
    assert set(fields) - {"draft_model_config", "draft_parallel_config", "tensor_parallel_size"} == KEYS
    assert {one for one in methods if not one.endswith("_mtp")} == METHODS
