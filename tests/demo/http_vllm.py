"""The simulated vLLM with its API of completions.

Also access to its counters, restarts, and faults on ``/metrics``.
"""

import asyncio
import json
import secrets
import time
from random import Random

from aiohttp import web

from lab.rust_pages import OPENMETRICS, rust_page
from specdec_tools.demo.scheduler import Request, RequestStatus, SamplingParams
from specdec_tools.demo.server import SimulatedVllm

DEFAULT_TEMPERATURE = 1.0
BYTES_PER_TOKEN = 4  # a rough tokenizer
FAULTS = {
    "error_500": {"status": 500},
    "html": {
        "text": "<!DOCTYPE html>\n<html><body><h1>Bad gateway</h1></body></html>\n",
        "content_type": "text/html",
    },
    "foreign": {"text": "# HELP other_up Not vLLM.\n# TYPE other_up gauge\nother_up 1.0\n"},
}


class HttpVllm(SimulatedVllm):
    """Chat and text completions as streams; a handler whose client disconnects is cancelled.

    ``fault`` says how its page fails from now on: error_500; html: a proxy's error page, with
    status 200; foreign: a sound exposition without a vLLM family; hang: no answer until the client
    goes away; or None. With ``is_rust``, the page is that of vLLM's Rust frontend. Prompts above
    ``most_tokens`` are refused in vLLM's words.
    """

    def __init__(self, *arguments, **options):
        self.fault = None
        self.is_rust = False
        self.most_tokens = 10**9
        super().__init__(*arguments, **options)
        self._random = Random(0)
        self.app.middlewares.append(self._failing)
        self.app.router.add_get("/v1/models", self._models)
        for path in ("/v1/completions", "/v1/chat/completions"):
            self.app.router.add_post(path, self._completions)

    @web.middleware
    async def _failing(self, request, handler):
        if self.fault == "hang":
            await asyncio.Event().wait()
        if self.fault:
            return web.Response(**FAULTS[self.fault])
        if self.is_rust and request.path.startswith("/metrics"):
            body, _ = self.page.render()
            return web.Response(
                text=rust_page(body.decode()), headers={"Content-Type": OPENMETRICS}
            )
        return await handler(request)

    def value(self, name, **labels):
        """The value of the sample ``vllm:<name>``."""
        own = {"model_name": self.options.model_name, "engine": self.options.engine}
        return self.page.registry.get_sample_value(f"vllm:{name}", own | labels)

    def counter(self, name, **labels):
        """The value of ``vllm:<name>_total``."""
        return self.value(f"{name}_total", **labels)

    async def restart(self):
        """Acts like a process that died and restarted.

        Counters are at 0, requests are broken off, and the start time is new.
        """
        before = self.engine
        self.begin()
        self.engine.start()
        await before.stop()

    async def _models(self, _request):
        return web.json_response(
            {"object": "list", "data": [{"id": self.options.model_name, "object": "model"}]}
        )

    async def _completions(self, http):
        body, engine = json.loads(await http.read()), self.engine
        if body.get("model", self.options.model_name) != self.options.model_name:
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        request = self._request(body, http.headers.get("X-Request-Id"))
        if request.num_prompt_tokens > self.most_tokens:
            return web.json_response({"error": {"message": self._too_long(request)}}, status=400)
        outputs = engine.submit(request)
        if not body.get("stream"):
            return await self._completion(request, outputs, engine)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        try:
            while not outputs.empty() or request.status is RequestStatus.RUNNING:
                new = await outputs.get()
                if new is None:  # the engine stopped under the request
                    http.transport.close()
                    return response
                if not response.prepared:
                    await response.prepare(http)
                text = "token " * len(new.new_token_ids)
                content = {"text": text}
                if "chat" in http.path:
                    content = {"delta": {"role": "assistant", "content": text}}
                await response.write(
                    event(choices=[{"index": 0, **content, "finish_reason": new.finish_reason}])
                )
        except ConnectionResetError:
            # between the client's disconnect and this handler's cancellation
            return response
        finally:
            engine.close(request)
        usage = (body.get("stream_options") or {}).get("include_usage")
        await response.write(
            (event(choices=[], **summary(request)) if usage else b"") + b"data: [DONE]\n\n"
        )
        return response

    async def _completion(self, request, outputs, engine):
        """A whole completion of text as one answer."""
        tokens = 0
        try:
            while not outputs.empty() or request.status is RequestStatus.RUNNING:
                tokens += len((await outputs.get()).new_token_ids)
        finally:
            engine.close(request)
        choice = {"index": 0, "text": "token " * tokens}
        return web.json_response({"choices": [choice], **summary(request)})

    def _too_long(self, request):
        return (
            f"This model's maximum context length is {self.most_tokens} tokens. However, your"
            f" prompt contains at least {request.num_prompt_tokens} input tokens"
        )

    def _request(self, body, named):
        """``named``: the id that the client gave it, of which vLLM makes its own."""
        if "prompt" in body:
            prompt = body["prompt"]
        else:
            prompt = "".join(message["content"] for message in body["messages"])
        return Request(
            request_id=f"cmpl-{named or secrets.token_hex(8)}-0",
            sampling_params=SamplingParams(body.get("temperature", DEFAULT_TEMPERATURE)),
            num_prompt_tokens=len(prompt) // BYTES_PER_TOKEN + 1,
            max_tokens=body["max_tokens"],
            arrival_time=time.time(),
            random=Random(self._random.getrandbits(64)),
        )


def event(**fields):
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def summary(request):
    """Usage, and vLLM's own acceptance of the request."""
    prompt, output, lengths = request.num_prompt_tokens, request.num_output_tokens, request.lengths
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
    if not sum(lengths):
        return {"usage": usage, "metrics": None}
    acceptance = {
        "acceptance_histogram": lengths,
        "num_spec_steps": sum(lengths),
        "num_accepted_draft_tokens": sum(length * steps for length, steps in enumerate(lengths)),
        "num_draft_tokens": sum(lengths) * (len(lengths) - 1),
    }
    return {"usage": usage, "metrics": {"speculative_decoding": acceptance}}
