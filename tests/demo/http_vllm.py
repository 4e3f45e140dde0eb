"""The simulated vLLM with its HTTP API, for what sends requests itself: chat and text completions, streamed or not."""

import json
import secrets
import time
from random import Random

from aiohttp import web

from sidecar.demo.request import Request, RequestStatus, SamplingParams
from sidecar.demo.server import SimulatedVllm

DEFAULT_TEMPERATURE = 1.0
MAX_MODEL_LEN = 8192
BYTES_PER_TOKEN = 4  # a rough tokenizer


class HttpVllm(SimulatedVllm):
    """``closed`` counts the replies that ended; a handler whose client disconnects is cancelled."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._random = Random(0)
        self.app.add_routes(
            [
                web.get("/v1/models", self._models),
                web.post("/v1/completions", self._completions),
                web.post("/v1/chat/completions", self._completions),
            ]
        )

    async def _models(self, _request):
        return web.json_response({"object": "list", "data": [{"id": self.options.model_name, "object": "model"}]})

    async def _completions(self, http):
        try:
            body = json.loads(await http.read())
            choices = self._choices(body)
        except (ValueError, TypeError, LookupError):
            return web.json_response({"error": {"message": "the request cannot be used"}}, status=400)
        engine, reply = self.engine, Reply(body, "chat" in http.path, choices)
        outputs = engine.submit(choices)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        try:
            while not outputs.empty() or any(choice.status is RequestStatus.RUNNING for choice in choices):
                new = await outputs.get()
                if new is None:  # the engine stopped under the request
                    http.transport.close()
                    return response
                if body.get("stream"):
                    if not response.prepared:
                        await response.prepare(http)
                    await response.write(reply.event([reply.choice(new.request, len(new.new_token_ids), "delta")]))
        except ConnectionResetError:  # between the client's disconnect and this handler's cancellation
            return response
        finally:
            engine.close(choices)
        if not body.get("stream"):
            said = [reply.choice(one, one.num_output_tokens, "message") for one in choices]
            return web.json_response({**reply.body(said), **reply.end()})
        usage = (body.get("stream_options") or {}).get("include_usage")
        await response.write((reply.event([], **reply.end()) if usage else b"") + b"data: [DONE]\n\n")
        return response

    def _choices(self, body):
        texts = body["prompt"] if "prompt" in body else "".join(one["content"] for one in body["messages"])
        prompts = [texts] if isinstance(texts, str) else texts
        temperature, asked = body.get("temperature"), body.get("max_tokens")
        sampling = SamplingParams(
            temperature=DEFAULT_TEMPERATURE if temperature is None else temperature,
            max_tokens=MAX_MODEL_LEN // 2 if asked is None else asked,
        )
        if body.get("model", self.options.model_name) != self.options.model_name or not sampling.max_tokens > 0:
            raise ValueError
        structured = (body.get("response_format") or {}).get("type", "text") != "text"
        return [
            Request(
                secrets.token_hex(8), sampling, len(prompt) // BYTES_PER_TOKEN + 1, time.time(),
                Random(self._random.getrandbits(64)), structured, index,
            )
            for index, prompt in enumerate(one for one in prompts for _ in range(body.get("n", 1)))
        ]  # fmt: skip


class Reply:
    """The reply to one HTTP request, with vLLM's keys as far as something reads them."""

    def __init__(self, asked, chat, choices):
        self._chat = chat
        self._model = asked.get("model")
        self._choices = choices

    def body(self, choices):
        kind = "chat.completion" if self._chat else "text_completion"
        return {"id": "1", "object": kind, "created": int(time.time()), "model": self._model, "choices": choices}

    def event(self, choices, **more):
        return b"data: " + json.dumps({**self.body(choices), **more}).encode() + b"\n\n"

    def choice(self, request, tokens, name):
        text = "token " * tokens
        said = {name: {"role": "assistant", "content": text}} if self._chat else {"text": text}
        return {"index": request.index, **said, "finish_reason": request.status.value or None}

    def end(self):
        """Usage, and vLLM's own acceptance of a request with one choice."""
        prompt, output = (
            sum(getattr(one, name) for one in self._choices) for name in ("num_prompt_tokens", "num_output_tokens")
        )
        usage = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
        lengths = self._choices[0].lengths
        if len(self._choices) > 1 or not sum(lengths):
            return {"usage": usage, "metrics": None}
        acceptance = {
            "acceptance_histogram": lengths,
            "num_spec_steps": sum(lengths),
            "num_accepted_draft_tokens": sum(length * steps for length, steps in enumerate(lengths)),
            "num_draft_tokens": sum(lengths) * (len(lengths) - 1),
        }
        return {"usage": usage, "metrics": {"speculative_decoding": acceptance}}
