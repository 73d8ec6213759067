#!/usr/bin/env python3
"""Puts the times of the expert matmuls on CUDA into docs/performance.md and draws them.

    build/cuda/bin/thalweg bench --backend cuda --suite experts --types Q4_K,Q8_0,Q6_K,Q5_K,Q4_0,MXFP4,F16 \\
        --csv docs/data/cuda-experts.csv
    build/cuda/bin/thalweg bench --backend cuda --suite moe --csv docs/data/cuda-moe.csv
    python3 tools/peer_experts.py --ggml FOLDER --csv docs/data/peers-experts.csv
    python3 tools/record_experts.py          # needs matplotlib

Fills what stands between <!-- experts --> and <!-- /experts -->, and so on, and draws docs/data/cuda-experts.svg.
"""

import math
import re

import matplotlib.pyplot as plt
from performance_page import DATA, fill, read

MIX = "Q4_K+Q4_K+Q8_0"  # of gate and up, down, and the shared expert
NAME = re.compile(r"E(\d+)_S(\d+)_N(\d+)_K(\d+)_(\w+?)_M(\d+)(_zipf)?$")


def parse(row):
    e, s, n, k, weight, tokens, zipf = NAME.match(row["shape"]).groups()
    return {"name": row["shape"], "shape": f"{e}, {s}, {n}, {k}", "type": weight, "tokens": int(tokens), "zipf": bool(zipf),
            "kernel": row["kernel"], "us": float(row["us"]), "floor": float(row["floor_us"]),
            "bar": float(row["bar_us"] or 0), "ggml": float(row["ggml_us"] or 0)}


def table(rows, cell):
    """A line for each shape and type, a column for each number of tokens; cell(row) may be empty."""
    tokens = sorted({r["tokens"] for r in rows})
    lines = ["| E, top-k, N, K | type | " + " | ".join(f"M = {t}" if t == tokens[0] else str(t) for t in tokens) + " |",
             "| --- | --- |" + " ---: |" * len(tokens)]
    for shape, weight in dict.fromkeys((r["shape"], r["type"]) for r in rows):
        mine = {r["tokens"]: cell(r) for r in rows if (r["shape"], r["type"]) == (shape, weight)}
        if any(mine.values()):
            lines.append(f"| {shape} | {weight} | {' | '.join(mine.get(t, '') for t in tokens)} |")
    return "\n".join(lines)


def number(us):
    return f"{us:.1f}" if us < 10 else f"{us:.0f}"


def times(rows):
    return table(rows, lambda r: f"{number(r['us'])} ({r['us'] / r['floor']:.2f})")


def add_peer(rows):
    """The peer's times of the same shapes; what was published of them is in `published`."""
    peer = {r["shape"]: float(r["us"]) for r in read("peers-experts.csv")}
    for row in rows:
        row["published"] = row["ggml"]
        row["ggml"] = 0.0 if row["zipf"] else peer.get(row["name"], 0.0)


def over(rows, column):
    return table(rows, lambda r: f"{r['us'] / r[column]:.2f}" if r[column] else "")


def block(rows):
    names = {"us": "block", "dense_us": "of these dense", "bar_us": "bar"}
    lines = ["| us | " + " | ".join(f"M = {r['tokens']}" if i == 0 else r["tokens"] for i, r in enumerate(rows)) + " |",
             "| --- |" + " ---: |" * len(rows)]
    for column, name in names.items():
        lines.append(f"| {name} | " + " | ".join(number(float(r[column])) for r in rows) + " |")
    lines.append("| kernel | " + " | ".join(f"`{r['kernel']}`" for r in rows) + " |")
    return "\n".join(lines)


def draw(rows):
    """Of each type, the shape with the most weights."""
    figure, axes = plt.subplots(figsize=(7.5, 4.5))
    shape = rows[0]["shape"]
    colors = plt.get_cmap("tab10").colors
    for i, weight in enumerate(dict.fromkeys(r["type"] for r in rows)):
        mine = [r for r in rows if (r["shape"], r["type"]) == (shape, weight)]
        axes.plot([r["tokens"] for r in mine], [r["us"] for r in mine], marker="o", markersize=3, color=colors[i],
                  label=weight)
        axes.plot([r["tokens"] for r in mine], [r["floor"] for r in mine], color=colors[i], linewidth=0.8,
                  linestyle=":")
    ggml = [r for r in rows if r["shape"] == shape and r["type"] == "Q4_K" and r["ggml"]]
    axes.plot([r["tokens"] for r in ggml], [r["ggml"] for r in ggml], "k^", markersize=4, label="Q4_K, ggml")
    axes.set(xscale="log", yscale="log", xlabel=f"tokens, of E, top-k, N, K = {shape}",
             ylabel="us; dotted: reading the weights that are hit")
    axes.grid(True, which="major", linewidth=0.3)
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(DATA / "cuda-experts.svg", metadata={"Date": None})


def main():
    rows = [parse(r) for r in read("cuda-experts.csv")]
    add_peer(rows)
    uniform = [r for r in rows if not r["zipf"]]
    fill([("experts", times(uniform)), ("experts bars", over(uniform, "bar")),
          ("experts zipf", over([r for r in rows if r["zipf"]], "bar")),
          ("experts ggml us", table(uniform, lambda r: number(r["ggml"]))),
          ("experts ggml", over(uniform, "ggml")), ("moe", block([r for r in read("cuda-moe.csv") if r["mix"] == MIX]))])
    draw(uniform)
    ratios = [r["ggml"] / r["published"] for r in uniform if r["published"]]
    print(f"ggml over its published times: {min(ratios):.2f} to {max(ratios):.2f}, in the geometric mean "
          f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}")
    ahead = [r["us"] / r["ggml"] for r in uniform]
    print(f"thalweg over ggml: {min(ahead):.2f} to {max(ahead):.2f}, in the geometric mean "
          f"{math.exp(sum(map(math.log, ahead)) / len(ahead)):.2f}")


if __name__ == "__main__":
    main()
