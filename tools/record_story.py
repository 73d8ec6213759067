#!/usr/bin/env python3
"""Writes what the shipped story model answers exactly into its model card.

    python3 tools/record_story.py --bf16 FOLDER --wide FOLDER
    python3 tools/record_story.py

The first asks the shipped file and the exported bf16 weights (FOLDER of tools/train_story_model.py) the questions of
models/eval, and those of a wider set by tools/stories.py with another seed, with `thalweg eval`, and stores the counts
in docs/data/story-accuracy.json. Both fill the table in models/README.md and draw docs/data/story-accuracy.svg (needs
matplotlib).
"""

import argparse
import json
import math
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "docs/data/story-accuracy.json"
PLOT = ROOT / "docs/data/story-accuracy.svg"
CARD = ROOT / "models/README.md"
FILE = ROOT / "models/story-q4_k.gguf"
THALWEG = ROOT / "build/release/bin/thalweg"
LENGTHS = (50, 200, 500, 1000, 2000, 4000)


def ask(model, folder, *more) -> dict:
    command = [THALWEG, "eval", "--json", "-m", model, "--set", folder, *more]
    sets = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)["sets"]
    return {row["set"].removeprefix("stories-"): [row["exact"], row["questions"]] for row in sets}


def measure(bf16, wide) -> dict:
    folders = {"shipped": ROOT / "models/eval", "wide": wide}
    return {
        name: {"bf16": ask(bf16, folder, "--exact"), "file": ask(FILE, folder)} for name, folder in folders.items()
    }


def table(data) -> str:
    names = [str(n) for n in LENGTHS] + ["sums", "inverse"]
    lines = ["| questions of | " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(names)]
    for title, key in (("`models/eval`", "shipped"), ("the wider set", "wide")):
        cells = [str(data[key]["file"][name][1]) for name in names]
        lines.append(f"| **{title}** | " + " | ".join(cells) + " |")
        for model, column in (("bf16", "bf16"), ("the shipped file", "file")):
            shares = [100 * exact / asked for exact, asked in (data[key][column][name] for name in names)]
            lines.append(f"| {model} | " + " | ".join(f"{share:.1f} %" for share in shares) + " |")
    return "\n".join(lines)


def interval(exact, asked):
    """Wilson's interval of 95 % for a share; rounding may not put the share outside."""
    z, share = 1.96, exact / asked
    middle = (share + z * z / (2 * asked)) / (1 + z * z / asked)
    half = z * math.sqrt(share * (1 - share) / asked + z * z / (4 * asked * asked)) / (1 + z * z / asked)
    return min(share, middle - half), max(share, middle + half)


def draw(data):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "thalweg", "svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.6))
    curves = ((0.97, "bf16", "bf16", "#3b7ea1"), (1.03, "file", "shipped file", "#c4622d"))
    for shift, column, title, colour in curves:
        counts = [data["wide"][column][str(length)] for length in LENGTHS]
        shares = [100 * exact / asked for exact, asked in counts]
        bounds = [interval(*count) for count in counts]
        low = [share - 100 * low for share, (low, _) in zip(shares, bounds)]
        high = [100 * high - share for share, (_, high) in zip(shares, bounds)]
        axes.errorbar([n * shift for n in LENGTHS], shares, [low, high], fmt="o-", color=colour, label=title, capsize=3)
    axes.plot([LENGTHS[0], 1000, 1000, LENGTHS[-1]], [98, 98, 95, 95], "--", color="#888888", label="aim")
    axes.set_xscale("log")
    axes.set_xticks(LENGTHS, [str(n) for n in LENGTHS])
    axes.minorticks_off()
    axes.set_ylim(93, 100.3)
    axes.set_xlabel("tokens of story")
    axes.set_ylabel("exact answers, %")
    axes.grid(axis="y", color="#dddddd")
    axes.legend(loc="lower left")
    figure.savefig(PLOT, bbox_inches="tight", metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bf16", type=pathlib.Path, help="folder of the exported model")
    parser.add_argument("--wide", type=pathlib.Path, help="folder of the wider set")
    options = parser.parse_args()
    if bool(options.bf16) != bool(options.wide):
        parser.error("--bf16 and --wide go together")
    if options.bf16:
        DATA.write_text(json.dumps(measure(options.bf16, options.wide), indent=1) + "\n")
    data = json.loads(DATA.read_text())
    place = re.compile(r"(<!-- accuracy -->\n).*(<!-- /accuracy -->)", re.DOTALL)
    CARD.write_text(place.sub(lambda match: f"{match[1]}{table(data)}\n{match[2]}", CARD.read_text()))
    draw(data)


if __name__ == "__main__":
    main()
