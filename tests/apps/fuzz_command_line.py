#!/usr/bin/env python3
"""Runs random command lines: fuzz_command_line.py BINARY [--seconds N] [--seed N]

Every run is in a new, empty folder of the system's temporary folder, with files made there, and every path that a
command line names lies in it. A run fails if it ends with a signal or with an exit code other than 0, 1, 2 and 130, if
an error is not one line on stderr, or if it shows the words of a library. The command line that failed is printed, and
the exit code is 1.
"""

import argparse
import os
import pathlib
import random
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time

ALLOWED = {0, 1, 2, 130}
LEAKS = re.compile(r"stoull|stol\b|basic_filebuf|basic_ios|\[json\.exception|regex_error|std::|vector::|basic_string|"
                   r"filesystem error|Resource temporarily unavailable$")
LARGEST_FILE = 100 << 20
MOST_MEMORY = 16 << 30  # of addresses
LIMIT = 20  # seconds of a run, which is then interrupted: many commands rightly take long

NUMBERS = ["0", "1", "2", "3", "-1", "-5", "007", "1x", "x", "", " ", "nan", "inf", "-inf", "1e3", "1e400", "0x10", "2.5",
           "99999999999", "9223372036854775808", "18446744073709551615", "18446744073709551616", "0.001", "+1", "1,2,3"]
TEXTS = ["", "hello", "Where is the ball?", "\n", "a\nb", "\x1b[31m", "(", "[", "a{99999999}", "(" * 2000, "*", "^$", "-",
         "--", "é", "<|im_end|>", "x" * 5000, "%s", "{}", "{0}", "[1,2]", "'", '"', "a=b"]


def make_files(binary, folder, rng):
    """The files that command lines may name; some are damaged."""
    def write(name, data):
        (folder / name).write_bytes(data)

    subprocess.run([binary, "synth", "model.gguf", "--gigabytes", "0.02", "--type", "Q8_0", "--seed", "1"], cwd=folder,
                   check=True, capture_output=True)
    subprocess.run([binary, "synth", "ids.gguf", "--gigabytes", "0.02", "--no-tokenizer"], cwd=folder, check=True,
                   capture_output=True)
    model = (folder / "model.gguf").read_bytes()
    write("short.gguf", model[:len(model) // 3])
    head = bytearray(model)
    for _ in range(8):
        head[rng.randrange(4096)] = rng.randrange(256)
    write("damaged.gguf", bytes(head))
    write("empty", b"")
    write("text.txt", b"The ball is in the kitchen. " * 20)
    write("bytes", bytes(rng.randrange(256) for _ in range(500)))
    write("good.jsonl", b'{"prompt": "Where?", "answer": "here", "tokens": 9}\n')
    for number, line in enumerate([b'{"prompt": 3, "answer": "x"}', b'{"prompt": "a"', b'[]', b'{"prompt":"\xff"}',
                                   b'{"prompt": "a", "answer": "b", "tokens": 1e99}', b'[' * 100000, b'null']):
        write(f"bad{number}.jsonl", line)
    write("config.json", b'{"model_type": "qwen3_next"}')
    (folder / "folder").mkdir()
    (folder / "locked").mkdir()
    write("locked/inside", b"x")
    os.chmod(folder / "locked", 0)
    (folder / "loop").symlink_to("loop")


FILES = ["model.gguf", "model.gguf", "model.gguf", "ids.gguf", "short.gguf", "damaged.gguf", "empty", "text.txt", "bytes",
         "good.jsonl", "bad0.jsonl", "bad1.jsonl", "bad2.jsonl", "bad3.jsonl", "bad4.jsonl", "bad5.jsonl", "bad6.jsonl",
         ".", "folder", "folder/", "locked", "locked/inside", "loop", "missing", "no/such/file", "*.jsonl", "no*.x", "out",
         "out.gguf", "folder/out", "-", "", "config.json"]


def read_options(binary):
    """Each command's options from its own manual page: ([names], takes a value, choices)."""
    with tempfile.TemporaryDirectory(prefix="thalweg-fuzz-") as folder:
        subprocess.run([binary, "man", folder], check=True, cwd=folder)
        tree = {}
        for page in sorted(pathlib.Path(folder).glob("thalweg*.1")):
            options = []
            text = page.read_text().replace("\\-", "-")
            for names, rest in re.findall(r"^\.TP\n(\\fB-.*)\n((?:.*\n)*?)(?=\.TP|\.SH)", text, re.MULTILINE):
                choices = re.search(r"^One of (.*)$", rest, re.MULTILINE)
                options.append((re.findall(r"\\fB(-.*?)\\fR", names), "\\fI" in names,
                                choices.group(1).split(", ") if choices else []))
            tree[page.stem.removeprefix("thalweg").removeprefix("-")] = options
        return tree


def value(rng, choices):
    kind = rng.random()
    if choices and kind < 0.5:
        return rng.choice(choices)
    if kind < 0.6:
        return rng.choice(NUMBERS)
    return rng.choice(FILES) if kind < 0.85 else rng.choice(TEXTS)


def mutate(rng, word):
    if not word:
        return word
    at = rng.randrange(len(word))
    return rng.choice([word[:at] + word[at + 1:], word[:at] + rng.choice("abc-=09") + word[at:], word[:at], word * 2])


# What keeps runs short: most command lines end with one of these.
SHORT = {"generate": ["-n", "3"], "chat": ["-n", "3"], "verify": ["--op", "add"], "perplexity": ["-f", "text.txt"],
         "bench": ["--op", "add", "--seconds", "0.001"], "eval": ["--set", "good.jsonl"], "synth": ["--gigabytes", "0.002"],
         "quantize": ["Q4_0"]}


def command_line(rng, tree):
    command = rng.choice([name for name in tree if name])
    words = [command]
    if command in ("generate", "chat", "inspect", "quantize", "perplexity", "eval") and rng.random() < 0.8:
        words += [rng.choice(["-m", "--model"])] * (rng.random() < 0.5 and command != "quantize")
        words.append("model.gguf" if rng.random() < 0.6 else rng.choice(FILES))
    if command in ("quantize", "synth") and rng.random() < 0.9:
        words.append(rng.choice(["out.gguf", "out.gguf", rng.choice(FILES)]))
    for _ in range(rng.randrange(5)):
        names, takes_value, choices = rng.choice(tree[command])
        name = rng.choice(names)
        if rng.random() < 0.05:
            name = mutate(rng, name)
        if takes_value and rng.random() < 0.95:
            given = value(rng, choices)
            words += [f"{name}={given}"] if rng.random() < 0.1 else [name, given]
        else:
            words.append(name)
    if rng.random() < 0.1:
        words.append(value(rng, []))
    if rng.random() < 0.95:
        words += SHORT.get(command, [])
    if rng.random() < 0.05:
        words[0] = mutate(rng, command)
    if rng.random() < 0.02:
        words = rng.sample(words, len(words))
    # Nothing but the folder's own files: no absolute path, no way up, no folder of the user.
    return [word.replace("\0", "").replace("/..", "").replace("~", "") for word in words]


def bound():
    """What a command line may take of the machine; beyond it, writes and allocations fail."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored where a script started us in the background
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if MOST_MEMORY:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))


def needs_more_memory(binary):
    """Whether it cannot even start within the bounds: sanitizers reserve terabytes."""
    return subprocess.run([binary, "--version"], capture_output=True, preexec_fn=bound).returncode != 0


def run(binary, words, folder, stdin):
    environment = {"PATH": os.environ.get("PATH", ""), "TMPDIR": str(folder / "folder"), "HOME": str(folder)}
    process = subprocess.Popen([binary, *words], cwd=folder, env=environment, stdin=subprocess.PIPE,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
                               preexec_fn=bound)
    interrupted = False
    try:
        _, err = process.communicate(stdin, LIMIT)
    except subprocess.TimeoutExpired:
        interrupted = True
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(None, LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            _, err = process.communicate()
            return None, "does not stop", err.decode(errors="replace")
    code, text = process.returncode, err.decode(errors="replace")
    if interrupted and code == -signal.SIGINT:
        return code, None, text  # of a command that has no handler: what Ctrl-C does anywhere
    if code not in ALLOWED:
        return code, f"exit code {code}", text
    errors = [line for line in text.splitlines() if line.startswith("thalweg: ")]
    if code == 2 and len(errors) != 1:
        return code, "not one line of error", text
    if any(LEAKS.search(line) for line in errors):
        return code, "a library's words", text
    return code, None, text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    arguments = parser.parse_args()
    binary = str(pathlib.Path(arguments.binary).resolve())
    print(f"seed {arguments.seed}", flush=True)
    rng = random.Random(arguments.seed)
    tree = read_options(binary)
    if len(tree) < 10 or not all(tree.values()):
        sys.exit("the manual pages do not have the commands and options")
    if needs_more_memory(binary):
        global MOST_MEMORY
        MOST_MEMORY = 0
    end = time.monotonic() + arguments.seconds
    runs, failures, codes = 0, 0, {}
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory(prefix="thalweg-fuzz-", ignore_cleanup_errors=True) as name:
            folder = pathlib.Path(name)
            make_files(binary, folder, rng)
            # The files wear out: commands write over them.
            for _ in range(100):
                if time.monotonic() >= end:
                    break
                words = command_line(rng, tree)
                stdin = rng.choice([b"", b"hello\n", b"/exit\n", b"\xff\xfe\n", b"/clear\nhello\n", b"x\\\n\\"])
                code, problem, text = run(binary, words, folder, stdin)
                runs += 1
                codes[code] = codes.get(code, 0) + 1
                if problem:
                    failures += 1
                    print(f"FAILED  {problem}: thalweg {shlex.join(words)[:2000]}\n        stdin {stdin}\n"
                          f"        {text[-500:]}", flush=True)
            os.chmod(folder / "locked", 0o700)
    counts = ", ".join(f"{count} times {code}" for code, count in sorted(codes.items(), key=str))
    print(f"{runs} command lines, {failures} failed; exit codes: {counts}")
    # Where every command line is refused, nothing is tried.
    sys.exit(1 if failures or codes.get(0, 0) == 0 or codes.get(2, 0) == 0 else 0)


if __name__ == "__main__":
    main()
