#!/usr/bin/env python3
"""Puts the comparisons with llama.cpp on CPUs into docs/performance-cpu.md and draws them.

    python3 tools/peer_llama.py -m FILE --llama-bench PATH --machine NAME --csv docs/data/peers-cpu.csv   # one or more
    python3 tools/record_peers_cpu.py          # needs matplotlib

Fills what stands between <!-- peers --> and <!-- /peers -->, and draws docs/data/peers-cpu.svg.
"""

import matplotlib.pyplot as plt
from performance_page import DATA, fill, read

PAGE = "performance-cpu.md"
KINDS = {"small-moe": "experts", "small-dense": "dense"}  # names of the files, and of the models on the page


def work(row):
    return "decoding" if row["phase"] == "decode" else f"a prompt of {row['tokens']}"


def run_of(row):
    instructions = "all instructions" if row["instructions"] == "all" else row["instructions"].upper() + " alone"
    return f"{row['machine']}, {row['threads']} threads, {instructions}"


def table(rows):
    lines = ["| machine | model | | llama.cpp | Thalweg | ratio | within a round |",
             "| --- | --- | --- | ---: | ---: | ---: | --- |"]
    shown = None
    for row in rows:
        first = "" if run_of(row) == shown else run_of(row)
        shown = run_of(row)
        mode = ", repacked" if row["mode"] == "repack 1" else ""
        least, largest = float(row["least"]), float(row["largest"])
        lines.append(f"| {first} | {KINDS.get(row['model'], row['model'])} | {work(row)} | "
                     f"{float(row['llama.cpp']):.0f}{mode} | {float(row['thalweg']):.0f} | {float(row['ratio']):.2f} | "
                     f"{least:.2f} to {largest:.2f} |")
    return "\n".join(lines)


def draw(rows):
    runs = list(dict.fromkeys(run_of(row) for row in rows))
    figure, panels = plt.subplots(len(runs), 1, figsize=(7.2, 0.9 + 0.26 * len(rows) + 0.5 * len(runs)), sharex=True,
                                  squeeze=False, gridspec_kw={"height_ratios": [sum(run_of(r) == run for r in rows) + 1
                                                                                for run in runs]})
    for axes, run in zip(panels[:, 0], runs):
        mine = [row for row in rows if run_of(row) == run]
        names = [f"{KINDS.get(row['model'], row['model'])}, {work(row)}" for row in mine]
        ratios = [float(row["ratio"]) for row in mine]
        spread = [[max(0.0, ratio - float(row["least"])) for ratio, row in zip(ratios, mine)],
                  [max(0.0, float(row["largest"]) - ratio) for ratio, row in zip(ratios, mine)]]
        axes.barh(names, ratios, color="#3b7ea1", xerr=spread, ecolor="#222", error_kw={"linewidth": 0.8})
        axes.axvline(1.0, color="#b5442c", linewidth=1)
        for i, (ratio, above) in enumerate(zip(ratios, spread[1])):
            axes.text(ratio + above + 0.03, i, f"{ratio:.2f}", va="center", fontsize=8)
        axes.invert_yaxis()
        axes.set_title(run, fontsize=9, loc="left")
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1, 0].set_xlim(0, 1.15 * max(float(row["largest"]) for row in rows))
    panels[-1, 0].set_xlabel("tokens per second, llama.cpp = 1; lines: least and largest ratio of a round", fontsize=8)
    figure.tight_layout()
    figure.savefig(DATA / "peers-cpu.svg", metadata={"Date": None})


def main():
    rows = sorted(read("peers-cpu.csv"), key=lambda row: (row["machine"], int(row["threads"]), row["instructions"],
                                                          row["model"] != "small-moe", row["phase"], int(row["tokens"])))
    fill([("peers", table(rows))], PAGE)
    draw(rows)


if __name__ == "__main__":
    main()
