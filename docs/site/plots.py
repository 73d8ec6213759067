"""Plots of the operations' pages, from the figures that the repository holds."""

from html import escape

# Narrow enough to be read on a telephone: labels stand above their bars.
WIDTH, LEFT, RIGHT, ROW = 440, 4, 40, 30


def against_floor(operation: str, rows: list[dict]) -> str:
    """Bars of time over the floor, one for each case; the line at 1 is the floor.

    rows: "case", "kernel", "median_us" and "floor_us" of docs/data/bench-cpu.json.
    """
    ratios = [row["median_us"] / row["floor_us"] for row in rows]
    scale = (WIDTH - LEFT - RIGHT) / max([*ratios, 1.0])
    bottom = ROW * len(rows) + 4
    height = bottom + 24
    floor = LEFT + scale
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="12" role="img" aria-label="{escape(operation)}: time over the floor">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for i, (row, ratio) in enumerate(zip(rows, ratios)):
        y = 4 + ROW * i
        lines.append(f'<text x="{LEFT}" y="{y + 11}" fill="#333">{escape(row["case"])}, {escape(row["kernel"])}</text>')
        lines.append(f'<rect x="{LEFT}" y="{y + 15}" width="{max(ratio * scale, 1):.1f}" height="9" fill="#3b7ea1"/>')
        lines.append(f'<line x1="{floor:.1f}" y1="{y + 13}" x2="{floor:.1f}" y2="{y + 26}" stroke="#b5442c" '
                     'stroke-width="2"/>')
        label = LEFT + max(ratio, 1.0) * scale + 5
        lines.append(f'<text x="{label:.1f}" y="{y + 24}" fill="#333">{ratio:.2f}</text>')
    lines.append(f'<text x="{LEFT}" y="{bottom + 16}" fill="#555">time over the floor (red): what memory or arithmetic '
                 'allow</text>')
    lines.append("</svg>")
    return "\n".join(lines) + "\n"
