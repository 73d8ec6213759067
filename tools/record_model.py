#!/usr/bin/env python3
"""Puts the speed of whole models on a GPU into docs/performance.md and draws it.

    build/cuda/bin/thalweg synth --like Qwen3.5-35B-A3B 35b.gguf
    build/cuda/bin/thalweg bench --op model --device cuda -m 35b.gguf --csv docs/data/cuda-model.csv
    build/cuda/bin/thalweg bench --backend cuda --suite linear --csv docs/data/cuda-linear.csv
    python3 tools/record_model.py          # needs matplotlib

docs/data/peers-model.csv holds llama.cpp's tokens per second for a file of the same shapes and types. Fills what stands
between <!-- model --> and <!-- /model -->, and <!-- linear --> likewise, and draws docs/data/cuda-model.svg.
"""

import matplotlib.pyplot as plt
from performance_page import DATA, fill, read


def key(row):
    return row["phase"], int(row["batch"]), int(row["tokens"])


def table(rows, peer):
    lines = ["| | tokens/s | ms | floor, ms | over the floor | llama.cpp, tokens/s | times as fast |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for row in rows:
        phase, batch, tokens = key(row)
        name = f"prefill of {tokens}" if phase == "prefill" else f"decoding of {batch} after {tokens}"
        speed, ms, floor = (float(row[column]) for column in ("tokens_per_second", "ms", "floor_ms"))
        theirs = peer.get(key(row))
        last = f"{theirs:.0f} | {speed / theirs:.2f}" if theirs else " | "
        lines.append(f"| {name} | {speed:.0f} | {ms:.2f} | {floor:.2f} | {ms / floor:.2f} | {last} |")
    return "\n".join(lines)


def matrices(rows):
    counts = list(dict.fromkeys(int(r["rows"]) for r in rows))
    lines = ["| N x K, type | " + " | ".join(f"{n} row{'s' if n > 1 else ''}" if n == 1 else str(n) for n in counts) + " |",
             "| --- |" + " ---: |" * len(counts)]
    for matrix in dict.fromkeys(r["matrix"] for r in rows):
        mine = {int(r["rows"]): r for r in rows if r["matrix"] == matrix}
        one = next(iter(mine.values()))
        cells = [f"{float(mine[n]['us']):.1f} `{mine[n]['kernel']}`" if n in mine else "" for n in counts]
        lines.append(f"| {one['n']} x {one['k']}, {one['type']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(rows, peer):
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8))
    for axes, phase, label in ((left, "prefill", "tokens of the prompt"), (right, "decode", "sequences, after 512 tokens")):
        mine = [r for r in rows if r["phase"] == phase and (phase == "prefill" or r["tokens"] == "512")]
        x = [int(r["tokens" if phase == "prefill" else "batch"]) for r in mine]
        axes.plot(x, [float(r["tokens_per_second"]) for r in mine], "o-", label="Thalweg")
        count = (lambda r: int(r["tokens"])) if phase == "prefill" else (lambda r: int(r["batch"]))
        axes.plot(x, [float(r["tokens_per_second"]) * float(r["ms"]) / float(r["floor_ms"]) for r in mine], ":",
                  color="gray", label="floor")
        theirs = [(count(r), peer[key(r)]) for r in mine if key(r) in peer]
        axes.plot([a for a, _ in theirs], [b for _, b in theirs], "k^--", markersize=4, linewidth=0.8, label="llama.cpp")
        axes.set(xscale="log", yscale="log", xlabel=label, ylabel="tokens/s", title=phase if phase == "prefill" else "decoding")
        axes.grid(True, which="major", linewidth=0.3)
        axes.set_xticks(x, [str(n) for n in x])
        axes.minorticks_off()
    left.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(DATA / "cuda-model.svg", metadata={"Date": None})


def main():
    rows = read("cuda-model.csv")
    peer = {key(r): float(r["tokens_per_second"]) for r in read("peers-model.csv")}
    fill([("model", table(rows, peer)), ("linear", matrices(read("cuda-linear.csv")))])
    draw(rows, peer)


if __name__ == "__main__":
    main()
