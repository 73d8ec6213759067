#!/usr/bin/env python3
"""Times llama.cpp and Thalweg on the CPU with the same file, in turns, and prints their ratio.

    python3 tools/peer_llama.py -m small-moe.gguf --llama-bench llama.cpp/build/bin/llama-bench --threads 2 \\
        --machine "AMD EPYC, Zen 5" --csv docs/data/peers-cpu.csv

llama.cpp runs with its weights as they are and repacked (`--repack 0` and `1`); the better of the two counts, for each
row. Each program's best round is compared with the other's; the spread is that of the ratios within a round. A round in
which other processes take more than --most-other of the processors' time is repeated; if that does not help, nothing is
judged.
"""

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ATTEMPTS = 3  # of a round
TICKS = os.sysconf("SC_CLK_TCK")


class Loaded(Exception):
    """Other processes use the machine."""


def busy_seconds():
    """Of all processors together, guests' and stolen time included."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS


def own_seconds():
    return sum(use.ru_utime + use.ru_stime
               for use in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def share_of_others(work):
    """Runs `work`; returns its result and the share of the processors' time that other processes took meanwhile."""
    wall, busy, own = time.monotonic(), busy_seconds(), own_seconds()
    result = work()
    others = busy_seconds() - busy - (own_seconds() - own)
    return result, max(others, 0.0) / ((time.monotonic() - wall) * os.cpu_count())


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def time_llama(options, repack):
    """Tokens per second of each row: (phase, tokens)."""
    rows = json.loads(run([options.llama_bench, "-m", options.model, "-t", str(options.threads), "-ngl", "0", "-r", "1",
                           "-p", ",".join(map(str, options.prefill)), "-n", str(options.decode), "--repack",
                           str(repack), "-o", "json"]))
    return {("prefill", row["n_prompt"]) if row["n_prompt"] else ("decode", 1): row["avg_ts"] for row in rows}


def time_thalweg(options):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        sets = ["--instruction-set", options.instruction_set] if options.instruction_set else []
        run([options.thalweg, "bench", "--op", "model", "-m", options.model, "--threads", str(options.threads), *sets,
             "--prefill", ",".join(map(str, options.prefill)), "--seconds", str(options.seconds), "--json", path])
        rows = json.loads(path.read_text())
    return {("prefill", row["tokens"]) if row["phase"] == "prefill" else ("decode", 1):
            row["tokens"] / row["median_seconds"] if row["phase"] == "prefill" else row["median_tokens_per_second"]
            for row in rows}


def time_round(options, first):
    """One of each program; `first` says which begins."""
    peers = [("repack 0", lambda: time_llama(options, 0)), ("repack 1", lambda: time_llama(options, 1)),
             ("thalweg", lambda: time_thalweg(options))]
    return {name: measure() for name, measure in peers[first:] + peers[:first]}


def quiet_round(options, number):
    for attempt in range(ATTEMPTS):
        print(f"round {number + 1} of {options.rounds}" + (f", attempt {attempt + 1}" if attempt else ""),
              file=sys.stderr, flush=True)
        times, others = share_of_others(lambda: time_round(options, number % 3))
        if others <= options.most_other:
            return times
        print(f"  other processes took {others:.0%} of the processors' time", file=sys.stderr)
    raise Loaded(f"other processes took more than {options.most_other:.0%} of the processors' time in each of "
                 f"{ATTEMPTS} attempts")


def compare(rounds):
    """A row for each phase: llama.cpp's best, its mode, ours, the ratio, and the least and largest of a round."""
    rows = []
    for key in rounds[0]["thalweg"]:
        theirs = {mode: max(times[mode][key] for times in rounds) for mode in ("repack 0", "repack 1")}
        mode = max(theirs, key=theirs.get)
        ours = max(times["thalweg"][key] for times in rounds)
        ratios = [times["thalweg"][key] / times[mode][key] for times in rounds]
        rows.append({"phase": key[0], "tokens": key[1], "llama.cpp": theirs[mode], "mode": mode, "thalweg": ours,
                     "ratio": ours / theirs[mode], "least": min(ratios), "largest": max(ratios)})
    return rows


def write(options, rows):
    run_of = {"machine": options.machine, "model": options.model.stem, "threads": str(options.threads),
              "instructions": options.instruction_set or "all"}
    before = []
    if options.csv.exists():
        with options.csv.open(newline="") as file:
            before = [row for row in csv.DictReader(file) if any(row[key] != run_of[key] for key in run_of)]
    with options.csv.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*run_of, *rows[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(before)
        writer.writerows({**run_of, **{key: round(value, 3) if isinstance(value, float) else value
                                       for key, value in row.items()}} for row in rows)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True, type=Path)
    parser.add_argument("--llama-bench", required=True, type=Path, help="built for this processor, without a GPU")
    parser.add_argument("--thalweg", type=Path, default=Path("build/release/bin/thalweg"))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--prefill", type=lambda text: [int(n) for n in text.split(",")], default=[512, 2048])
    parser.add_argument("--decode", type=int, default=64, help="tokens that llama.cpp decodes")
    parser.add_argument("--seconds", type=float, default=10.0, help="of Thalweg's decoding, and of each of its prompts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most-other", type=float, default=0.05)
    parser.add_argument("--instruction-set", help="of Thalweg's kernels, for a llama.cpp that was built for less than "
                        "the processor has: one of those that `thalweg operations` lists")
    parser.add_argument("--csv", type=Path, help="add the rows to this file, in place of those of the same comparison")
    parser.add_argument("--machine", default="this machine", help="its name in that file")
    return parser.parse_args()


def main():
    options = parse()
    _, others = share_of_others(lambda: time.sleep(2))
    try:
        if others > options.most_other:
            raise Loaded(f"other processes take {others:.0%} of the processors' time")
        rows = compare([quiet_round(options, number) for number in range(options.rounds)])
    except Loaded as reason:
        raise SystemExit(f"Not judged: {reason}.") from None
    print(f"{options.model.name}, {options.threads} threads, tokens per second, best of {options.rounds} rounds\n")
    print(f"{'':<16} {'llama.cpp':>10} {'':<9} {'thalweg':>10} {'ratio':>6}   within a round")
    for row in rows:
        name = f"prefill {row['tokens']}" if row["phase"] == "prefill" else "decode"
        print(f"{name:<16} {row['llama.cpp']:>10.1f} {row['mode']:<9} {row['thalweg']:>10.1f} {row['ratio']:>6.2f}   "
              f"{row['least']:.2f} to {row['largest']:.2f}")
    if options.csv:
        write(options, rows)


if __name__ == "__main__":
    main()
