#!/usr/bin/env python3
"""Puts the times of the gated delta rule on CUDA into docs/performance.md and draws those of prefill.

    build/cuda/bin/thalweg bench --backend cuda --suite published --csv docs/data/cuda-prefill.csv
    build/cuda/bin/thalweg bench --backend cuda --suite short --csv docs/data/cuda-prefill-short.csv
    build/cuda/bin/thalweg bench --backend cuda --suite widths --csv docs/data/cuda-prefill-widths.csv
    export THALWEG_KERNEL=chunk_gated_delta_rule:mma
    build/cuda/bin/thalweg bench --backend cuda --suite widths --csv docs/data/cuda-prefill-mma.csv
    export THALWEG_KERNEL=chunk_gated_delta_rule:token_by_token
    build/cuda/bin/thalweg bench --backend cuda --suite widths --csv docs/data/cuda-prefill-tokens.csv
    unset THALWEG_KERNEL
    build/cuda/bin/thalweg bench --backend cuda --suite decode --csv docs/data/cuda-decode.csv
    python3 tools/peer_prefill.py --peer fla --csv docs/data/peers-prefill.csv
    python3 tools/peer_prefill.py --peer flashqla --csv docs/data/peers-prefill.csv
    python3 tools/peer_prefill.py --peer flashinfer --rows . --csv docs/data/peers-flashinfer.csv
    python3 tools/peer_prefill.py --peer thalweg --error docs/data/cuda-prefill-errors.csv
    python3 tools/peer_prefill.py --peer fla --error docs/data/cuda-prefill-errors.csv
    python3 tools/peer_prefill.py --peer flashinfer --error docs/data/cuda-prefill-errors.csv
    python3 tools/record_prefill.py          # needs matplotlib

Fills what stands between <!-- prefill --> and <!-- /prefill -->, and so on, and draws docs/data/cuda-prefill.svg.
"""

import math

import matplotlib.pyplot as plt
from performance_page import DATA, fill, read

PEERS = {"fla": "FLA", "flashqla": "FlashQLA", "flashinfer": "FlashInfer", "thalweg": "Thalweg"}


def key(row):
    return row["num_k_heads"], row["num_v_heads"], row["seqlens"]


def with_flashinfer_here(rows, measured):
    """The rows with FlashInfer's times on this GPU instead of the published ones."""
    times = {key(r): r["ms"] for r in measured}
    return [dict(r, flashinfer_ms=times[key(r)]) for r in rows]


def best(row):
    return min(float(row["flashqla_ms"]), float(row["flashinfer_ms"]))


def flashinfer(row):
    return float(row["flashinfer_ms"]) / float(row["thalweg_ms"])


def ratio(row):
    return best(row) / float(row["thalweg_ms"])


def mean(values):
    values = list(values)
    return math.exp(sum(math.log(v) for v in values) / len(values))


def summary(rows):
    """One line for each configuration of heads."""
    lines = ["| HK, HV | 1x2048 | 1x8192 | 1x32768 | 1024x8 | 8192x4 | geometric mean of 19 | least |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    configurations = list(dict.fromkeys((r["num_k_heads"], r["num_v_heads"]) for r in rows))
    for heads in configurations:
        mine = [r for r in rows if (r["num_k_heads"], r["num_v_heads"]) == heads]
        cells = []
        for name in ("1x2048", "1x8192", "1x32768", "1024x8", "8192x4"):
            row = next(r for r in mine if r["seqlens"] == name)
            cells.append(f"{float(row['thalweg_ms']):.3f} ms ({ratio(row):.2f})")
        lines.append(f"| {heads[0]}, {heads[1]} | {' | '.join(cells)} | {mean(map(ratio, mine)):.2f} | "
                     f"{min(map(ratio, mine)):.2f} |")
    over = sum(ratio(r) > 1 for r in rows)
    lines.append(f"\nAll {len(rows)} rows: geometric mean {mean(map(ratio, rows)):.3f}, least "
                 f"{min(map(ratio, rows)):.2f}, above 1 in {over}.")
    return "\n".join(lines)


KINDS = {
    "one sequence": lambda name: name.startswith("1x"),
    "two sequences": lambda name: "+" in name,
    "four or eight": lambda name: name.endswith(("x4", "x8")),
    "all": lambda name: True,
}


def by_kind(rows):
    lines = ["| sequences | rows | FlashInfer over ours | least | the better of both over ours | least | below 1 |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for name, wanted in KINDS.items():
        mine = [r for r in rows if wanted(r["seqlens"])]
        lines.append(f"| {name} | {len(mine)} | {mean(map(flashinfer, mine)):.2f} | {min(map(flashinfer, mine)):.2f} | "
                     f"{mean(map(ratio, mine)):.2f} | {min(map(ratio, mine)):.2f} | {sum(ratio(r) < 1 for r in mine)} |")
    return "\n".join(lines)


def short(rows):
    names = [r["seqlens"].removeprefix("1x") for r in rows]
    times = [f"{1e3 * float(r['thalweg_ms']):.1f}" for r in rows]
    return "\n".join(["| tokens | " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(rows),
                      "| us | " + " | ".join(times) + " |"])


def widths(chosen, mma, tokens):
    """Other widths of a head, and the kernels that are not the first choice."""
    lines = ["| K = V | sequences | chosen, ms | `mma`, ms | `token_by_token`, ms | floor, ms |",
             "| ---: | --- | ---: | ---: | ---: | ---: |"]
    for rows in zip(chosen, mma, tokens):
        times = " | ".join(f"{float(r['thalweg_ms']):.3f}" for r in rows)
        r = rows[0]
        lines.append(f"| {r['model'].split()[-1]} | {r['seqlens']} | {times} | {float(r['floor_ms']):.3f} |")
    return "\n".join(lines)


def decode(rows):
    lines = ["| shape | us | floor us | share of the copy's speed |", "| --- | ---: | ---: | ---: |"]
    for r in rows:
        lines.append(f"| {r['shape']} | {float(r['us']):.1f} | {float(r['floor_us']):.1f} | "
                     f"{100 * float(r['share_of_copy']):.0f} % |")
    return "\n".join(lines)


def calibration(rows, ours):
    thalweg = {key(r): float(r["thalweg_ms"]) for r in ours}
    lines = ["| peer | HK, HV | sequences | here, ms | published, ms | ratio | over ours |",
             "| --- | --- | --- | ---: | ---: | ---: | ---: |"]
    for r in rows:
        here, published = float(r["ms"]), float(r["published_ms"])
        over = here / thalweg[key(r)]
        lines.append(f"| {PEERS[r['peer']]} | {r['num_k_heads']}, {r['num_v_heads']} | {r['seqlens']} | {here:.3f} | "
                     f"{published:.3f} | {here / published:.2f} | {over:.2f} |")
    return "\n".join(lines)


def errors(rows):
    peers = list(dict.fromkeys(r["peer"] for r in rows))
    lines = ["| gates | T | " + " | ".join(f"{PEERS[p]}: output | state" for p in peers) + " |",
             "| --- | ---: |" + " ---: |" * (2 * len(peers))]
    for shape in dict.fromkeys((r["gates"], r["tokens"]) for r in rows):
        cells = [f"{float(r[kind]):.1e}" for p in peers for r in rows
                 if (r["peer"], r["gates"], r["tokens"]) == (p, *shape) for kind in ("output_error", "state_error")]
        lines.append(f"| {shape[0]} | {shape[1]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(rows):
    figure, axes = plt.subplots(figsize=(7.5, 5.0))
    series = (("FLA", "fla_ms", "#bbbbbb", "v"), ("FlashInfer", "flashinfer_ms", "#7aa6c2", "s"),
              ("FlashQLA", "flashqla_ms", "#e0a96d", "^"), ("Thalweg", "thalweg_ms", "#b3261e", "o"))
    for label, column, color, marker in series:
        axes.scatter([float(r["floor_ms"]) for r in rows], [float(r[column]) for r in rows], s=14, c=color,
                     marker=marker, label=label, linewidths=0)
    ends = [0.003, 0.5]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.text(0.16, 0.128, "floor", rotation=38, fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="floor of the row, ms (bytes at 4.3 TB/s or products at 790 TFLOP/s)",
             ylabel="time, ms")
    axes.grid(True, which="major", linewidth=0.3)
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(DATA / "cuda-prefill.svg", metadata={"Date": None})


def main():
    rows = with_flashinfer_here(read("cuda-prefill.csv"), read("peers-flashinfer.csv"))
    fill([("prefill", summary(rows)), ("prefill by kind", by_kind(rows)),
          ("short", short(read("cuda-prefill-short.csv"))),
          ("widths", widths(read("cuda-prefill-widths.csv"), read("cuda-prefill-mma.csv"),
                            read("cuda-prefill-tokens.csv"))),
          ("decode", decode(read("cuda-decode.csv"))),
          ("errors", errors(read("cuda-prefill-errors.csv"))),
          ("calibration", calibration(read("peers-prefill.csv"), rows))])
    draw(rows)


if __name__ == "__main__":
    main()
