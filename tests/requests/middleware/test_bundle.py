"""The middleware as one file, as vLLM's container gets it."""

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec

from sidecar.requests.middleware.bundle import standalone_source

DRIVER = """
import asyncio, importlib, json, sys
sys.path[:] = [path for path in sys.path if "site-packages" not in path and path] + {paths!r}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "sidecar":
            raise ImportError("not here: " + name)
sys.meta_path.insert(0, Refuse())
module = importlib.import_module("any_name")
exchange = json.load(sys.stdin)

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    await receive()
    headers = [(name.encode(), value.encode()) for name, value in exchange["headers"].items()]
    await send({{"type": "http.response.start", "status": 200, "headers": headers}})
    for event in exchange["body"].split("\\n\\n")[:-1]:
        await send({{"type": "http.response.body", "body": event.encode() + b"\\n\\n", "more_body": True}})
    await send({{"type": "http.response.body", "body": b""}})

async def receive():
    return {{"type": "http.request", "body": json.dumps(exchange["request"]).encode()}}

sent = []
async def send(message):
    sent.append(message)

async def main():
    observer = module.ObserveRequests(app)
    for _ in range(3):
        await observer({{"type": "http", "method": "POST", "path": exchange["path"], "headers": []}}, receive, send)
    await observer({{"type": "lifespan"}}, receive, send)

asyncio.run(main())
known = set(sys.stdlib_module_names) | {{"msgspec", "any_name", "__main__"}}
print(len(sent), sorted({{name.partition(".")[0] for name in sys.modules}} - known))
"""


def test_one_file_serves_traffic_with_nothing_but_msgspec(tmp_path, recorded_exchange, socket_path):
    """It runs in an isolated interpreter that can't import this project, and a real receiver takes its events."""
    (tmp_path / "any_name.py").write_text(standalone_source())
    site = tmp_path / "site"
    site.mkdir()
    (site / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    exchange = recorded_exchange("chat-stream")
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER.format(paths=[str(tmp_path), str(site)]))
    with subprocess.Popen(
        [sys.executable, "-c", RECEIVER, socket_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as receiver:
        assert receiver.stdout.readline() == "ready\n"
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-W", "error", driver],
            input=json.dumps(exchange),
            env={"SPECDEC_MIDDLEWARE__SOCKET": socket_path, "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.stderr, done.returncode) == ("", 0)
        count, _, foreign = done.stdout.strip().partition(" ")
        assert int(count) == 3 * (exchange["body"].count("\n\n") + 2)
        assert ast.literal_eval(foreign) == []
        out, _ = receiver.communicate("", timeout=60)
        assert json.loads(out) == {"starts": 3, "ends": 3, "tokens": 72, "drops": {}}


RECEIVER = """
import asyncio, json, sys
from collections import Counter
from sidecar.requests.middleware.event_receiver import EventReceiver

class Sink:
    starts = ends = tokens = 0
    drops = Counter()
    def started(self, request): self.starts += 1
    def finished(self, record): self.ends += 1; self.tokens += record.completion_tokens
    def dropped(self, reason, count): self.drops[reason] += count

async def main():
    sink = Sink()
    receiver = EventReceiver(sys.argv[1], sink)
    await receiver.start()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await receiver.stop()
    print(json.dumps({"starts": sink.starts, "ends": sink.ends, "tokens": sink.tokens, "drops": sink.drops}))

asyncio.run(main())
"""


def test_the_file_imports_nothing_of_this_project():
    imported = set()
    for node in ast.walk(ast.parse(standalone_source())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.partition(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"msgspec"}


def test_no_name_is_defined_in_two_of_the_modules():
    """One would overwrite the other's."""
    names = []
    for node in ast.parse(standalone_source()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign):
            names.append(node.target.id)
    assert len(names) > 100
    assert [name for name, number in Counter(names).items() if number > 1] == []
