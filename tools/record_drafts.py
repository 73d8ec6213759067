#!/usr/bin/env python3
"""Measures decoding with drafts on this machine's CPU and writes the figures into docs/speculation.md.

    python3 tools/record_drafts.py [--threads N] [--runs N] [--from docs/data/drafts-cpu.json]

Runs `build/release/bin/thalweg bench --op draft --json` of the shipped file several times, keeps the fastest run of
each row and the median of its ratios to the same run without drafts, stores them in docs/data/drafts-cpu.json, fills
the table, and draws docs/data/drafts-cpu.svg (needs matplotlib):
speed over no drafts against the share of drafts that were right. With --from nothing is measured.
"""

import argparse
import datetime
import json
import pathlib
import re
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "docs/data/drafts-cpu.json"
PLOT = ROOT / "docs/data/drafts-cpu.svg"
PAGE = ROOT / "docs/speculation.md"
MODEL = ROOT / "models/story-q4_k.gguf"
THALWEG = ROOT / "build/release/bin/thalweg"
COLORS = {"lookup": "#3b7ea1", "mtp": "#c4622d", "auto": "#5a8f4e"}


def measure(threads, runs):
    """Rows with the fastest of `runs` runs, and the rates of all of them."""
    best, rates = {}, {}
    for _ in range(runs):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            command = [THALWEG, "bench", "--op", "draft", "-m", MODEL, "--threads", str(threads)]
            command += ["--device", "cpu", "--json", file.name, "--force"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            (model,) = json.loads(pathlib.Path(file.name).read_text())
        for row in model["results"]:
            key = row["text"], row["drafts"]
            rates.setdefault(key, []).append(round(row["tokens_per_second"], 1))
            if key not in best or row["tokens_per_second"] > best[key]["tokens_per_second"]:
                best[key] = row
    for (text, drafts), row in best.items():
        row["runs"] = rates[text, drafts]
        row["over_off"] = statistics.median(rate / off for rate, off in zip(row["runs"], rates[text, "off"]))
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())[1]
    return {"cpu": cpu, "threads": threads, "date": f"{datetime.date.today()}", "rows": list(best.values())}


def table(rows):
    lines = ["| text | drafts | tokens/s | over off | tokens per run | right |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: |")
    for row in rows:
        right = "-" if row["drafts"] == "off" else f"{100 * row['acceptance']:.0f}%"
        lines.append(
            f"| {row['text']} | {row['drafts']} | {row['tokens_per_second']:.1f} | {row['over_off']:.2f} "
            f"| {row['tokens_per_run']:.2f} | {right} |"
        )
    return "\n".join(lines)


def draw(rows):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "thalweg", "svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
    for drafts, color in COLORS.items():
        of_kind = [row for row in rows if row["drafts"] == drafts]
        x, y = [100 * row["acceptance"] for row in of_kind], [row["over_off"] for row in of_kind]
        axes.plot(x, y, "o", color=color, label=drafts)
        for row, at, over in zip(of_kind, x, y):
            axes.annotate(row["text"], (at, over), (4, 4), textcoords="offset points", fontsize=8, color=color)
    axes.axhline(1, color="#888888", linestyle="--")
    axes.set_xlim(20, 108)
    axes.set_xlabel("drafts that were right, %")
    axes.set_ylabel("tokens/s over no drafts")
    axes.legend(loc="upper left")
    axes.set_axisbelow(True)
    axes.grid(axis="y", color="#dddddd")
    figure.savefig(PLOT, bbox_inches="tight", metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--from", dest="source", type=pathlib.Path, help="figures that were measured before")
    options = parser.parse_args()
    if options.source:
        data = json.loads(options.source.read_text())
    else:
        data = measure(options.threads, options.runs)
        DATA.write_text(json.dumps(data, indent=1) + "\n")
    page = PAGE.read_text()
    filled = f"<!-- drafts -->\n{table(data['rows'])}\n<!-- /drafts -->"
    PAGE.write_text(re.sub(r"<!-- drafts -->\n.*?<!-- /drafts -->", lambda _: filled, page, flags=re.S))
    draw(data["rows"])


if __name__ == "__main__":
    main()
