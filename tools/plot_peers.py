#!/usr/bin/env python3
"""Draws docs/data/peers.svg, the plot of the README: how many times as fast as the best peer, work by work.

    python3 tools/plot_peers.py          # standard library only

Reads the measured files that tools/record_prefill.py and tools/record_experts.py describe: docs/data/cuda-prefill.csv,
peers-prefill.csv, peers-flashinfer.csv, cuda-experts.csv and peers-experts.csv. A bar is a geometric mean, its line
runs from the least to the largest ratio of the shapes behind it. Prints the ratios.
"""

import csv
import math
import pathlib

DATA = pathlib.Path(__file__).resolve().parent.parent / "docs/data"


def read(name):
    with open(DATA / name, newline="") as file:
        return list(csv.DictReader(file))


def mean(values):
    return math.exp(sum(math.log(v) for v in values) / len(values))


def key(row):
    return row["num_k_heads"], row["num_v_heads"], row["seqlens"]


def prefill_groups():
    ours = {key(r): float(r["thalweg_ms"]) for r in read("cuda-prefill.csv")}
    measured = [float(r["ms"]) / ours[key(r)] for r in read("peers-prefill.csv") if r["peer"] == "flashqla"]

    def flashinfer(wanted):
        return [float(r["ms"]) / ours[key(r)] for r in read("peers-flashinfer.csv") if wanted(r["seqlens"])]

    return [
        ("one sequence", flashinfer(lambda name: name.startswith("1x")), "FlashInfer, same GPU"),
        ("several sequences", flashinfer(lambda name: not name.startswith("1x")), "FlashInfer, same GPU"),
        (f"{len(measured)} of these shapes", measured, "FlashQLA, same kind"),
    ]


def expert_groups():
    theirs = {r["shape"]: float(r["us"]) for r in read("peers-experts.csv")}
    ratios = {}
    for row in read("cuda-experts.csv"):
        shape = row["shape"]
        if shape not in theirs or shape.endswith("_zipf") or "_F16_" in shape:
            continue
        tokens = int(shape.rsplit("_M", 1)[1])
        ratios.setdefault(tokens, []).append(theirs[shape] / float(row["us"]))
    spans = [("1 token", 1, 1), ("8 tokens", 8, 8), ("32 tokens", 32, 32), ("128 to 512 tokens", 128, 512),
             ("2048 and 8192 tokens", 2048, 8192)]
    return [(name, [r for t in ratios if low <= t <= high for r in ratios[t]], "ggml, same GPU")
            for name, low, high in spans]


def text(x, y, words, anchor="start", size=13, weight="normal", color="#222"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
            f'fill="{color}">{words}</text>')


def draw(sections):
    width, left, right, row_height = 900, 345, 60, 26
    largest = max(max(values) for _, groups in sections for _, values, _ in groups)
    most = math.ceil(largest)

    def x_of(ratio):
        return left + (width - left - right) * ratio / most

    parts, y = [], 62
    for title, groups in sections:
        parts.append(text(16, y + 4, title, weight="bold"))
        y += row_height
        for name, values, peer in groups:
            middle, ratio = y - 1, mean(values)
            parts.append(text(28, middle + 4, name))
            parts.append(text(left - 12, middle + 4, peer, anchor="end", size=11, color="#777"))
            parts.append(f'<rect x="{left}" y="{middle - 8}" width="{x_of(ratio) - left:.1f}" height="16" '
                         f'fill="{"#2a78c2" if ratio >= 1 else "#c2652a"}"/>')
            parts.append(f'<path d="M{x_of(min(values)):.1f},{middle} H{x_of(max(values)):.1f}" stroke="#0d2f52" '
                         'stroke-width="1.5"/>')
            parts.append(text(x_of(max(values)) + 6, middle + 4, f"{ratio:.2f}x", weight="bold"))
            y += row_height
        y += 10
    bottom = y - 16
    grid = []
    for ratio in range(0, most + 1):
        strong = ratio == 1
        grid.append(f'<path d="M{x_of(ratio):.1f},46 V{bottom}" stroke="{"#444" if strong else "#ddd"}" '
                    f'stroke-dasharray="{"4 3" if strong else "none"}"/>')
        grid.append(text(x_of(ratio), bottom + 16, "as fast" if strong else f"{ratio}x", anchor="middle", size=11,
                         color="#444" if strong else "#777"))
    heading = [
        text(16, 24, "How many times as fast as the best other kernel, NVIDIA H200", size=16, weight="bold"),
        text(width - 16, 24, "bar: geometric mean; line: least to largest", anchor="end", size=11, color="#777"),
    ]
    height = bottom + 28
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="Helvetica, Arial, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>', *heading, *grid, *parts, "</svg>", ""])


def main():
    sections = [("Gated delta rule, prefill, bf16", prefill_groups()),
                ("Expert matmul on GGUF blocks, 4 to 8 bits", expert_groups())]
    for title, groups in sections:
        print(title)
        for name, values, peer in groups:
            print(f"  {name:24} {peer:20} mean {mean(values):.2f}, least {min(values):.2f}, largest {max(values):.2f}, "
                  f"{len(values)} shapes")
    (DATA / "peers.svg").write_text(draw(sections))


if __name__ == "__main__":
    main()
