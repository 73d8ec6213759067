#!/usr/bin/env python3
"""Kills a server again and again while it answers, with --cache-dir: kill_restart.py THALWEG MODEL [--kills N] [--seed N]

After each kill -9 the server starts again on the same folder. Every answer must be, to the character, that of a server
without a cache; the files must never be counted as damaged, and what was kept must be found.
"""

import argparse
import http.client
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

SENTENCES = [
    "John went to the kitchen. ",
    "Mary took the ball there. ",
    "Daniel moved to the office. ",
    "Sandra dropped the apple. ",
    "Where is the milk? ",
]


def prompt_of(seed):
    choose = random.Random(seed)
    return "".join(choose.choice(SENTENCES) for _ in range(choose.randrange(20, 120)))


class Server:
    def __init__(self, binary, model, more=()):
        command = [binary, "serve", "-m", model, "--device", "cpu", "--port", "0", "--log", "off", *more]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.port = None
        for line in self.process.stdout:
            if line.startswith("http://"):
                self.port = int(line.strip().rstrip("/").rsplit(":", 1)[1])
                break
        if self.port is None:
            sys.exit("the server did not start:\n" + self.process.stderr.read())

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        if response.status != 200:
            raise AssertionError(f"{response.status}: {answer}")
        return answer

    def complete(self, seed):
        body = {"prompt": prompt_of(seed), "max_tokens": 8, "temperature": 0}
        answer = self.post("/v1/completions", body)
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def metric(self, name):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        return float(next(line for line in text.splitlines() if line.startswith(f"thalweg_{name} ")).split()[1])

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.communicate()
        return self.process.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    arguments = parser.parse_args()
    print(f"--seed {arguments.seed}", flush=True)
    choose = random.Random(arguments.seed)

    plain = Server(arguments.binary, arguments.model, ["--cache-host", "0"])
    expected = {seed: plain.complete(seed)[0] for seed in range(arguments.prompts)}
    plain.stop()

    wrong = []
    counts = {"answers": 0, "cached": 0}
    with tempfile.TemporaryDirectory() as folder:
        # Small enough that files are dropped all the time.
        more = ["--cache-dir", folder, "--cache-dir-size", "12MiB", "--cache-host", "8MiB"]

        def ask(server, seeds):
            for seed in seeds:
                try:
                    text, cached = server.complete(seed)
                except (OSError, http.client.HTTPException):
                    return  # killed
                except AssertionError as error:
                    wrong.append(str(error))
                    return
                counts["answers"] += 1
                counts["cached"] += cached > 0
                if text != expected[seed]:
                    wrong.append(f"prompt {seed}: {text!r} for {expected[seed]!r}")

        begin = time.monotonic()
        for kill in range(arguments.kills):
            server = Server(arguments.binary, arguments.model, more)
            clients = []
            for _ in range(3):
                seeds = [choose.randrange(arguments.prompts) for _ in range(50)]
                clients.append(threading.Thread(target=ask, args=(server, seeds)))
                clients[-1].start()
            time.sleep(choose.uniform(0.0, 0.4))
            if server.process.poll() is not None:
                sys.exit(f"the server ended by itself with {server.process.returncode}")
            server.stop(signal.SIGKILL)
            for client in clients:
                client.join()
            if wrong:
                sys.exit("\n".join(wrong))
            if time.monotonic() - begin > 5:
                begin = time.monotonic()
                print(f"{kill + 1} of {arguments.kills} kills", flush=True)

        server = Server(arguments.binary, arguments.model, more)
        checkpoints = server.metric("cache_dir_checkpoints")
        waited = time.monotonic()  # the engine's thread publishes it
        while not checkpoints and time.monotonic() - waited < 10:
            time.sleep(0.05)
            checkpoints = server.metric("cache_dir_checkpoints")
        ask(server, range(arguments.prompts))
        failures = server.metric("cache_dir_failures_total")
        code = server.stop()
    print(f"{counts['answers']} answers, {counts['cached']} of them with cached tokens; {checkpoints:.0f} checkpoints at the end")
    if wrong or failures or not checkpoints or not counts["cached"] or code != 0:
        sys.exit(f"{wrong}; {failures} damaged files, exit {code}")


if __name__ == "__main__":
    main()
