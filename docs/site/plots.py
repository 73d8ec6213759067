"""Plots of the operations' pages, from the figures that the repository holds."""

from html import escape

WIDTH, LABELS, RIGHT, ROW = 720, 300, 90, 20


def against_floor(operation: str, rows: list[dict]) -> str:
    """Bars of time over the floor, one for each case; the line at 1 is the floor.

    rows: "case", "kernel", "median_us" and "floor_us" of docs/data/bench-cpu.json.
    """
    ratios = [row["median_us"] / row["floor_us"] for row in rows]
    longest = max([*ratios, 1.0])
    scale = (WIDTH - LABELS - RIGHT) / longest
    height = ROW * len(rows) + 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="11" role="img" aria-label="{escape(operation)}: time over the floor">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for i, (row, ratio) in enumerate(zip(rows, ratios)):
        y = 4 + ROW * i
        label = f'{row["case"]}  {row["kernel"]}'
        if len(label) > 46:
            label = label[:45] + "…"
        lines.append(f'<text x="{LABELS - 8}" y="{y + 13}" text-anchor="end" fill="#333">{escape(label)}</text>')
        lines.append(f'<rect x="{LABELS}" y="{y + 2}" width="{max(ratio * scale, 1):.1f}" height="{ROW - 6}" '
                     'fill="#3b7ea1"/>')
        lines.append(f'<text x="{LABELS + ratio * scale + 5:.1f}" y="{y + 13}" fill="#333">{ratio:.2f}</text>')
    floor = LABELS + scale
    bottom = 4 + ROW * len(rows)
    lines.append(f'<line x1="{floor:.1f}" y1="0" x2="{floor:.1f}" y2="{bottom}" stroke="#b5442c"/>')
    lines.append(f'<text x="{LABELS}" y="{bottom + 20}" fill="#555">time over the floor; the line at 1 is what memory or '
                 'arithmetic allow</text>')
    lines.append("</svg>")
    return "\n".join(lines) + "\n"
