#!/usr/bin/env python3
"""Writes what the shipped story model answers exactly into its model card.

    python3 tools/record_story.py --wide FOLDER [--bf16 FOLDER]
    python3 tools/record_story.py

The first asks the shipped file the questions of models/eval, and those of a wider set by tools/stories.py and
tools/conversations.py with another seed, with `thalweg eval`, and stores the counts in docs/data/story-accuracy.json;
with --bf16 it asks the exported weights (FOLDER of tools/train_story_model.py) too. Both fill the table in
models/README.md and draw docs/data/story-accuracy.svg (needs matplotlib).
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
OTHERS = ("sums", "inverse", "conversations")
ROWS = (("bf16", "bf16", "#3b7ea1"), ("file", "the shipped file", "#c4622d"))  # bf16 where it was measured


def ask(model, folder, *more) -> dict:
    command = [THALWEG, "eval", "--json", "-m", model, "--set", folder, *more]
    sets = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)["sets"]
    return {row["set"].removeprefix("stories-"): [row["exact"], row["questions"]] for row in sets}


def measure(bf16, wide) -> dict:
    data = {}
    for name, folder in {"shipped": ROOT / "models/eval", "wide": wide}.items():
        data[name] = {"file": ask(FILE, folder)}
        if bf16:
            data[name]["bf16"] = ask(bf16, folder, "--exact")
    return data


def table(data) -> str:
    names = [*map(str, LENGTHS), *OTHERS]
    lines = ["| questions of | " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(names)]
    for title, key in (("`models/eval`", "shipped"), ("the wider set", "wide")):
        cells = [str(data[key]["file"][name][1]) for name in names]
        lines.append(f"| **{title}** | " + " | ".join(cells) + " |")
        for column, model, _ in ROWS:
            if column not in data[key]:
                continue
            shares = [100 * exact / asked for exact, asked in (data[key][column][name] for name in names)]
            lines.append(f"| {model} | " + " | ".join(f"{share:.1f} %" for share in shares) + " |")
    return "\n".join(lines)


def interval(exact, asked):
    """Wilson's interval of 95 % for a share; rounding may not put the share outside."""
    z, share = 1.96, exact / asked
    middle = (share + z * z / (2 * asked)) / (1 + z * z / asked)
    half = z * math.sqrt(share * (1 - share) / asked + z * z / (4 * asked * asked)) / (1 + z * z / asked)
    return min(share, middle - half), max(share, middle + half)


def points(counts):
    """Shares in per cent, and the lengths of their error bars downwards and upwards."""
    shares = [100 * exact / asked for exact, asked in counts]
    bounds = [interval(*count) for count in counts]
    low = [share - 100 * low for share, (low, _) in zip(shares, bounds)]
    high = [100 * high - share for share, (_, high) in zip(shares, bounds)]
    return shares, [low, high]


def draw(data):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "thalweg", "svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    figure, (curves, kinds) = plt.subplots(
        1, 2, sharey=True, figsize=(9, 3.6), width_ratios=(3, 1.4), layout="constrained"
    )
    rows = [row for row in ROWS if row[0] in data["wide"]]
    for number, (column, title, color) in enumerate(rows):
        shift = number - (len(rows) - 1) / 2
        counts = data["wide"][column]
        shares, errors = points([counts[str(length)] for length in LENGTHS])
        x = [n * 1.06**shift for n in LENGTHS]
        curves.errorbar(x, shares, errors, fmt="o-", color=color, label=title, capsize=3)
        shares, errors = points([counts[name] for name in OTHERS])
        x = [at + 0.15 * shift for at in range(len(OTHERS))]
        kinds.errorbar(x, shares, errors, fmt="o", color=color, capsize=3)
    curves.plot([LENGTHS[0], 1000, 1000, LENGTHS[-1]], [98, 98, 95, 95], "--", color="#888888", label="aim")
    curves.set_xscale("log")
    curves.set_xticks(LENGTHS, [str(n) for n in LENGTHS])
    curves.minorticks_off()
    curves.set_ylim(93, 100.3)
    curves.set_xlabel("tokens of story")
    curves.set_ylabel("exact answers, %")
    curves.legend(loc="lower left")
    kinds.set_xticks(range(len(OTHERS)), OTHERS)
    kinds.set_xlim(-0.6, len(OTHERS) - 0.4)
    for axes in (curves, kinds):
        axes.set_axisbelow(True)
        axes.grid(axis="y", color="#dddddd")
    figure.savefig(PLOT, bbox_inches="tight", metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bf16", type=pathlib.Path, help="folder of the exported model")
    parser.add_argument("--wide", type=pathlib.Path, help="folder of the wider set")
    options = parser.parse_args()
    if options.bf16 and not options.wide:
        parser.error("--bf16 needs --wide")
    if options.wide:
        DATA.write_text(json.dumps(measure(options.bf16, options.wide), indent=1) + "\n")
    data = json.loads(DATA.read_text())
    place = re.compile(r"(<!-- accuracy -->\n).*(<!-- /accuracy -->)", re.DOTALL)
    CARD.write_text(place.sub(lambda match: f"{match[1]}{table(data)}\n{match[2]}", CARD.read_text()))
    draw(data)


if __name__ == "__main__":
    main()
