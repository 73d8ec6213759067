#!/usr/bin/env python3
"""Load on `thalweg serve`, from clients that behave and from those that do not: load.py BINARY MODEL [options]

Starts the server on the loopback interface and opens --connections to it for --seconds: --streams of them ask and check
each answer to the character against the one that a server alone gave; the others read slowly, go away at random, and
send malformed HTTP and JSON, bodies that end early and floods of headers. Every request must be answered or refused
properly, memory must not grow after the warm-up, nothing may run at the end, and SIGTERM must end the server with 0.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import random
import socket
import statistics
import struct
import subprocess
import sys
import time
import urllib.request

PATIENCE = 120  # seconds for any answer
MAX_BODY = 1 << 20
STORIES = [
    "Anna put the ball in the box. Where is the ball?",
    "John went to the kitchen. Mary took the milk. Where is John?",
    "Once upon a time",
    "The dog is in the garden. The cat is in the house. Where is the cat?",
]


class Failure(Exception):
    pass


class Connection:
    """One HTTP connection."""

    def __init__(self, port):
        self.port = port

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22)
        return self

    async def __aexit__(self, *_):
        self.writer.close()

    def reset(self):
        """Closes so that the server sees an error, as from a client that crashed."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def head(self):
        """The status and the headers of a response."""
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.split("\r\n")
        if not first.startswith("HTTP/1.1 "):
            raise Failure(f"no HTTP: {first!r}")
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        return int(first.split()[1]), headers

    async def chunks(self):
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)

    async def response(self):
        status, headers = await self.head()
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join([chunk async for chunk in self.chunks()])
        else:
            body = await self.reader.readexactly(int(headers["content-length"]))
        return status, headers, body


def request_bytes(path, body, method="POST", headers=""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n{headers}\r\n".encode() + data


def events(body):
    for line in body.decode().splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[6:])


# What each API is asked, and where its text stands: in a whole answer, and in an event of a stream.
def completion(story, seed):
    return {"prompt": story, "seed": seed, "max_tokens": 24, "temperature": 1}


def chat(story, seed):
    messages = [{"role": "user", "content": story}]
    off = {"reasoning_effort": "none", "thinking": {"type": "disabled"}}  # each API ignores the other's
    return {"messages": messages, "seed": seed, "max_tokens": 24, "temperature": 1, **off}


def response(story, seed):
    off = {"reasoning": {"effort": "none"}}
    return {"input": story, "seed": seed, "max_output_tokens": 24, "temperature": 1, **off}


APIS = {
    "/v1/completions": (
        completion,
        lambda answer: answer["choices"][0]["text"],
        lambda event: event["choices"][0]["text"],
    ),
    "/v1/chat/completions": (
        chat,
        lambda answer: answer["choices"][0]["message"]["content"],
        lambda event: event["choices"][0]["delta"].get("content", ""),
    ),
    "/v1/responses": (
        response,
        lambda answer: "".join(part["text"] for item in answer["output"] for part in item["content"]),
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
    ),
    "/v1/messages": (
        chat,
        lambda answer: "".join(block.get("text", "") for block in answer["content"]),
        lambda event: event["delta"].get("text", "") if event["type"] == "content_block_delta" else "",
    ),
}


class Load:
    def __init__(self, port, options):
        self.port = port
        self.options = options
        self.random = random.Random(options.seed)
        self.expected = {}
        self.counts = collections.Counter()
        self.failures = []

    def connect(self):
        return Connection(self.port)

    async def learn(self):
        """The answers of a server that does nothing else."""
        for path, (body_of, text_of, _) in APIS.items():
            for story in STORIES:
                for seed in (1, 2):
                    body = body_of(story, seed)
                    async with self.connect() as connection:
                        await connection.send(request_bytes(path, body))
                        status, _, answer = await connection.response()
                    if status != 200:
                        raise Failure(f"{path}: {status} {answer!r}")
                    self.expected[path, story, seed] = (body, text_of(json.loads(answer)))

    def pick(self):
        path, story, seed = self.random.choice(list(self.expected))
        return path, *self.expected[path, story, seed]

    def refused(self, status, headers):
        """A full queue may refuse; it must say when to come again."""
        if status != 429:
            return False
        if "retry-after" not in headers:
            raise Failure("429 without Retry-After")
        self.counts["refused"] += 1
        return True

    async def ask(self):
        """Requests with keep-alive, whole and streamed."""
        async with self.connect() as connection:
            for _ in range(self.random.randint(1, 4)):
                path, body, text = self.pick()
                stream = self.random.random() < 0.6
                await connection.send(request_bytes(path, {**body, "stream": stream}))
                status, headers, answer = await connection.response()
                if self.refused(status, headers):
                    continue
                if status != 200:
                    raise Failure(f"{path}: {status} {answer[:200]!r}")
                _, text_of, piece_of = APIS[path]
                got = "".join(map(piece_of, events(answer))) if stream else text_of(json.loads(answer))
                if got != text:
                    raise Failure(f"{path}: {got!r} instead of {text!r}")
                self.counts["right answers"] += 1

    async def read_slowly(self):
        path, body, text = self.pick()
        async with self.connect() as connection:
            await connection.send(request_bytes(path, {**body, "stream": True}))
            status, headers = await connection.head()
            if headers.get("transfer-encoding") != "chunked":
                if not self.refused(status, headers):
                    raise Failure(f"{path}: {status}")
                return
            body = b""
            async for chunk in connection.chunks():
                body += chunk
                await asyncio.sleep(self.random.random() * 0.1)
            if "".join(map(APIS[path][2], events(body))) != text:
                raise Failure(f"{path}: a slow reader got another answer")
            self.counts["slow readers"] += 1

    async def go_away(self):
        path, body, _ = self.pick()
        limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        async with self.connect() as connection:
            data = request_bytes(path, {**body, limit: 2000, "stream": self.random.random() < 0.7})
            await connection.send(data)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(connection.reader.read(self.random.randint(1, 4000)), self.random.random())
            if self.random.random() < 0.5:
                connection.reset()
            self.counts["disconnects"] += 1

    async def expect(self, data, statuses, end=False):
        """Sends what must be answered with one of these statuses; 0: by closing."""
        async with self.connect() as connection:
            status, body = 0, b""
            try:
                await connection.send(data)
                if end:
                    connection.writer.write_eof()
                status, _, body = await connection.response()
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            if status not in statuses:
                raise Failure(f"{status} {body[:200]!r} for {data[:100]!r}")
            return body

    async def send_malformed_http(self):
        garbage = self.random.randbytes(self.random.randint(1, 300)) + b"\r\n\r\n"
        data = self.random.choice(
            [
                garbage,
                b"GET\r\n\r\n",
                b"GET / HTTP/7.3\r\n\r\n",
                b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                b"POST /v1/completions HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
                b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + garbage,
            ]
        )
        await self.expect(data, (0, 400), end=True)
        self.counts["malformed HTTP"] += 1

    async def send_malformed_json(self):
        path = self.random.choice(list(APIS))
        body = bytearray(json.dumps(self.pick()[1]).encode())
        for _ in range(self.random.randint(1, 5)):
            body[self.random.randrange(len(body))] = self.random.randrange(256)
        data = self.random.choice([bytes(body[: len(body) // 2]), b"[" * 5000, b"[]", b'{"messages": {}}', b""])
        answer = await self.expect(request_bytes(path, data), (400,))
        if not json.loads(answer)["error"]["message"]:
            raise Failure(f"an error without a message for {data[:100]!r}")
        self.counts["malformed JSON"] += 1

    async def cut_body(self):
        data = request_bytes("/v1/completions", {"prompt": "x" * self.random.randint(1, 20000)})
        await self.expect(data[: self.random.randint(len(data) // 2, len(data) - 1)], (0,), end=True)
        self.counts["bodies cut off"] += 1

    async def flood(self):
        if self.random.random() < 0.5:
            lines = "".join(f"X-{i}: {'x' * 50}\r\n" for i in range(self.random.randint(2000, 20000)))
            await self.expect(f"GET /health HTTP/1.1\r\n{lines}\r\n".encode(), (431,))
        else:
            body = b"x" * (MAX_BODY + self.random.randint(1, MAX_BODY))
            await self.expect(request_bytes("/v1/completions", body), (413,))
        self.counts["floods"] += 1

    async def work(self, action_of, deadline):
        while time.monotonic() < deadline and len(self.failures) < 10:
            action = action_of()
            try:
                await asyncio.wait_for(action(), PATIENCE)
            except Exception as error:  # noqa: BLE001 - everything that goes wrong is a finding
                self.failures.append(f"{action.__name__}: {type(error).__name__} {error}")
            await asyncio.sleep(self.random.random() * 0.2)

    async def run(self, deadline):
        rude = [self.go_away, self.send_malformed_http, self.send_malformed_json, self.cut_body, self.flood]
        streams = self.options.streams
        slow = max(1, streams // 8)
        tasks = [self.work(lambda: self.ask, deadline) for _ in range(streams - slow)]
        tasks += [self.work(lambda: self.read_slowly, deadline) for _ in range(slow)]
        others = self.options.connections - streams
        tasks += [self.work(lambda: self.random.choice(rude), deadline) for _ in range(others)]
        await asyncio.gather(*tasks)


class Server:
    def __init__(self, options):
        command = [options.binary, "serve", options.model, "--port", "0", "--log", "off", "--device", "cpu"]
        command += ["--context", "4096", "--parallel", "8", "--queue", "512", "--cache-host", "32MiB"]
        command += ["--most-body", str(MAX_BODY), "--connections", str(options.connections + 64)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if line.startswith("http://"):
                self.port = int(line.strip().rstrip("/").rsplit(":", 1)[1])
                return
        raise Failure("the server did not start")

    def megabytes(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as page:
            lines = [line.split() for line in page.read().decode().splitlines() if not line.startswith("#")]
        return {name.removeprefix("thalweg_"): float(value) for name, value in lines}

    def stop(self):
        self.process.terminate()
        return self.process.wait(60)


async def watch_memory(server, deadline):
    samples = []
    while time.monotonic() < deadline:
        samples.append(server.megabytes())
        await asyncio.sleep(0.25)
    return samples


def check_memory(samples, failures):
    """The last quarter against the second: what is allocated lazily is there by then."""
    quarter = len(samples) // 4
    before = statistics.median(samples[quarter : 2 * quarter])
    after = statistics.median(samples[3 * quarter :])
    print(f"memory: {before:.0f} MiB after the warm-up, {after:.0f} MiB at the end")
    if after > before * 1.05 + 8:
        failures.append(f"memory grew from {before:.0f} to {after:.0f} MiB")


def check_idle(server, failures):
    for _ in range(200):
        numbers = server.metrics()
        if numbers["requests_running"] == numbers["requests_waiting"] == 0:
            break
        time.sleep(0.1)
    else:
        failures.append("requests run though all clients have gone")
    ended = sum(numbers[f"requests_{how}_total"] for how in ("finished", "cancelled", "failed"))
    if ended != numbers["requests_total"] or numbers["requests_failed_total"]:
        failures.append(f"requests that ended do not add up: {numbers}")


async def load(server, options):
    clients = Load(server.port, options)
    await clients.learn()
    deadline = time.monotonic() + options.seconds
    samples, _ = await asyncio.gather(watch_memory(server, deadline), clients.run(deadline))
    for what, count in sorted(clients.counts.items()):
        print(f"{what}: {count}")
    check_memory(samples, clients.failures)
    needed = {"right answers", "slow readers", "disconnects"}
    needed |= {"malformed HTTP", "malformed JSON", "bodies cut off", "floods"}
    if missing := needed - clients.counts.keys():
        clients.failures.append(f"never done: {', '.join(sorted(missing))}")
    return clients.failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="a thalweg program")
    parser.add_argument("model", help="models/story-q4_k.gguf")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--streams", type=int, default=64, help="of the connections, those that check answers")
    parser.add_argument("--seed", type=int, default=None, help="of the clients; drawn by default")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.randrange(1 << 32)
    print(f"seed: {options.seed}")
    server = Server(options)
    try:
        failures = asyncio.run(load(server, options))
        check_idle(server, failures)
    finally:
        status = server.stop()
    if status != 0:
        failures.append(f"the server ended with {status}")
    for failure in failures:
        print(f"FAILED {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
