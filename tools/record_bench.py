#!/usr/bin/env python3
"""Measures this machine and writes the figures into the documentation.

    python3 tools/record_bench.py [--threads N] [--from docs/data/bench-cpu.json]

Runs `build/release/bin/thalweg bench --json`, stores its rows with a description of the machine in
docs/data/bench-cpu.json, fills what stands between <!-- numbers:... --> and <!-- /numbers --> in docs/performance-cpu.md
and docs/operations/*.md, and draws docs/data/bench-cpu.svg (needs matplotlib). With --from nothing is measured.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "docs/data/bench-cpu.json"
PLOT = ROOT / "docs/data/bench-cpu.svg"
# The rows of docs/performance-cpu.md: what a decoder spends its time in.
SUMMARY = {
    "chunk_gated_delta_rule": "T1024", "recurrent_gated_delta_rule": "T1_", "gated_delta_prep_step": "B1_",
    "attention": "new_1_after", "linear": "M1_N2048_K2048_Q4_K", "mul_mat_id": "_E128_", "moe_ffn": "_fast",
}


def machine_description() -> str:
    cpu = "unknown processor"
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    compiler = subprocess.run(["c++", "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    return f"{cpu}, {os.cpu_count()} cores, {compiler}"


def measure(threads: int) -> dict:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [str(ROOT / "build/release/bin/thalweg"), "bench", "--json", file.name, "--threads", str(threads)]
        subprocess.run(command, check=True)
        rows = json.load(open(file.name))
    return {"machine": machine_description(), "date": datetime.date.today().isoformat(), "rows": rows}


def table(rows: list, with_operation: bool) -> str:
    lines = ["| operation | case | kernel | median us | GB/s | GFLOP/s | floor us | x floor |"]
    lines.append("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for row in rows:
        median = row["median_us"]
        lines.append(
            f"| {row['op']} | {row['case']} | {row['kernel']} | {median:.1f} | {row['bytes'] / median * 1e-3:.1f} | "
            f"{row['flops'] / median * 1e-3:.1f} | {row['floor_us']:.1f} | {median / row['floor_us']:.2f} |")
    if not with_operation:
        lines = [re.sub(r"^\| [^|]* ", "", line) for line in lines]
    return "\n".join(lines)


def fill(path: pathlib.Path, text_of) -> None:
    text = path.read_text()
    pattern = re.compile(r"(<!-- numbers:(\w+) -->\n).*?(<!-- /numbers -->)", re.S)
    filled = pattern.sub(lambda match: match[1] + text_of(match[2]) + match[3], text)
    if filled != text:
        path.write_text(filled)


def plot(data: dict) -> None:
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "thalweg"
    from matplotlib import pyplot

    rows = [row for row in data["rows"] if not row["case"].endswith("_per_expert_loop")]
    labels = [f"{row['op']}  {row['case']}"[:78] for row in rows]
    ratios = [row["median_us"] / row["floor_us"] for row in rows]
    figure, axes = pyplot.subplots(figsize=(11, 0.24 * len(rows) + 1.2))
    axes.barh(labels, ratios, color="#3b7ea1")
    axes.axvline(1.0, color="#444", linewidth=1)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("time over the floor (1 = memory or arithmetic at its measured limit)")
    axes.set_title(data["machine"], fontsize=8)
    axes.tick_params(labelsize=7)
    figure.tight_layout()
    figure.savefig(PLOT, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--from", dest="source")
    options = parser.parse_args()
    data = json.load(open(options.source)) if options.source else measure(options.threads)
    DATA.parent.mkdir(exist_ok=True)
    DATA.write_text(json.dumps(data, indent=1) + "\n")
    head = f"Measured on {data['machine']}, {data['date']}, by `thalweg bench{{}}`:\n\n"

    def of_operation(operation: str) -> str:
        rows = [row for row in data["rows"] if row["op"] == operation]
        return head.format(f" --op {operation}") + table(rows, False) + "\n" if rows else ""

    def of_summary(_: str) -> str:
        rows = [row for row in data["rows"] if row["op"] in SUMMARY and SUMMARY[row["op"]] in row["case"]]
        return head.format("") + table(rows, True) + "\n"

    for path in (ROOT / "docs/operations").glob("*.md"):
        fill(path, of_operation)
    fill(ROOT / "docs/performance-cpu.md", of_summary)
    plot(data)


if __name__ == "__main__":
    main()
