#!/usr/bin/env python3
"""Times a peer's chunk_gated_delta_rule on this machine's GPU, on the shapes of `thalweg bench --suite published`.

    pip install torch flash-linear-attention flash-qla
    python3 tools/peer_prefill.py [--peer fla|flashqla] [--rows REGEX] [--csv FILE] [--error]

Inputs are as the published table has them: q and k of norm 1, v normal, g = logsigmoid(normal) / 16 with every fourth
head at 0, beta = sigmoid(normal), a normal initial state; bf16 and f32. Kernels are compiled and tuned before the
clock starts; a time is the median over replays of a CUDA graph. With --error, the relative l2 errors of output and
final state against the recurrence in float64 on the same inputs are printed for a few shapes.
"""

import argparse
import csv
import os
import re
import statistics
from pathlib import Path

os.environ.setdefault("FLA_FLASH_QLA", "0")  # else FLA may hand the work to FlashQLA

import torch  # noqa: E402

HEAD = 128
SUITE = Path(__file__).resolve().parent.parent / "benchmarks" / "gdn_prefill_h200_published.csv"
PUBLISHED = {"fla": "fla_0_5_1_ms", "flashqla": "flashqla_ms"}  # columns of the suite
# A dozen rows over all kinds of shapes: few and many heads, one and several sequences.
CALIBRATION = [
    ("2", "8", "1x32768"), ("2", "8", "4096x8"), ("4", "16", "1x16384"), ("4", "16", "1024x8"),
    ("16", "32", "1x32768"), ("16", "32", "1x8192"), ("16", "32", "8192x4"), ("16", "32", "1024x8"),
    ("16", "64", "1x32768"), ("16", "64", "4096+4096"), ("16", "16", "2048x4"), ("32", "32", "1x2048"),
]


def rule_of(peer):
    if peer == "flashqla":
        from flash_qla import chunk_gated_delta_rule
    else:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    return chunk_gated_delta_rule


def lengths_of(text):
    result = []
    for part in text.split("+"):
        if "x" in part:
            a, b = sorted(int(x) for x in part.split("x"))
            result += [b] * a
        else:
            result.append(int(part))
    return result


def make_inputs(lengths, hk, hv, generator):
    tokens = sum(lengths)

    def normal(*shape, dtype=torch.float32):
        return torch.randn(*shape, device="cuda", generator=generator).to(dtype)

    unit = torch.nn.functional.normalize
    q = unit(normal(1, tokens, hk, HEAD), dim=-1).to(torch.bfloat16)
    k = unit(normal(1, tokens, hk, HEAD), dim=-1).to(torch.bfloat16)
    v = normal(1, tokens, hv, HEAD, dtype=torch.bfloat16)
    g = torch.nn.functional.logsigmoid(normal(1, tokens, hv)) / 16
    g[:, :, 3::4] = 0
    beta = torch.sigmoid(normal(1, tokens, hv))
    state = normal(len(lengths), hv, HEAD, HEAD)
    bounds = torch.tensor([0] + lengths, device="cuda", dtype=torch.int64).cumsum(0)
    return q, k, v, g, beta, state, bounds


def milliseconds(run, replays=15):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(2 + replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[2:])


def relative(actual, exact):
    return ((actual.double() - exact).norm() / exact.norm()).item()


def errors(rule, lengths, hk, hv, gates, generator):
    """Relative l2 errors of output and final state, against the recurrence in float64."""
    q, k, v, g, beta, _, _ = make_inputs(lengths, hk, hv, generator)
    g = {"near": g, "zero": torch.zeros_like(g), "strong": torch.full_like(g, -2.0)}[gates]
    state = torch.zeros(1, hv, HEAD, HEAD, device="cuda")
    output, final = rule(q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True)
    repeat = hv // hk
    qd, kd = (x.double().repeat_interleave(repeat, dim=2)[0] for x in (q, k))
    vd, gd, bd = v.double()[0], g.double()[0], beta.double()[0]
    s = torch.zeros(hv, HEAD, HEAD, device="cuda", dtype=torch.float64)  # [HV,K,V]
    exact = torch.empty(sum(lengths), hv, HEAD, device="cuda", dtype=torch.float64)
    for t in range(sum(lengths)):
        s = s * gd[t].exp()[:, None, None]
        delta = bd[t][:, None] * (vd[t] - torch.einsum("hkv,hk->hv", s, kd[t]))
        s = s + kd[t][:, :, None] * delta[:, None, :]
        exact[t] = torch.einsum("hkv,hk->hv", s, qd[t]) * HEAD**-0.5
    return relative(output[0], exact), relative(final[0], s)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=PUBLISHED, default="fla")
    parser.add_argument("--rows", help="regular expression over '(HK,HV) SEQUENCES'; a dozen rows without it")
    parser.add_argument("--csv", help="append the times to this file")
    parser.add_argument("--error", action="store_true", help="errors against float64 too")
    args = parser.parse_args()
    rule = rule_of(args.peer)
    generator = torch.Generator(device="cuda").manual_seed(7)
    written = []
    with open(SUITE, newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        hk, hv, name = row["num_k_heads"], row["num_v_heads"], row["seqlens"]
        if args.rows and not re.search(args.rows, f"({hk},{hv}) {name}"):
            continue
        if not args.rows and (hk, hv, name) not in CALIBRATION:
            continue
        lengths = lengths_of(name)
        q, k, v, g, beta, state, bounds = make_inputs(lengths, int(hk), int(hv), generator)
        if len(lengths) == 1:
            bounds = None
        with torch.no_grad():
            ms = milliseconds(lambda: rule(q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True,
                                           cu_seqlens=bounds))
        published = float(row[PUBLISHED[args.peer]])
        print(f"({hk},{hv}) {name:<14} {args.peer} {ms:8.4f} ms, published {published:.3f}, ratio "
              f"{ms / published:.3f}", flush=True)
        written.append([args.peer, hk, hv, name, f"{ms:.5f}", row[PUBLISHED[args.peer]]])
    if args.csv:
        new = not os.path.exists(args.csv)
        with open(args.csv, "a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if new:
                writer.writerow(["peer", "num_k_heads", "num_v_heads", "seqlens", "ms", "published_ms"])
            writer.writerows(written)
    if args.error:
        for gates in ("near", "zero", "strong"):
            for tokens in (100, 2048):
                output, state = errors(rule, [tokens], 1, 4, gates, generator)
                print(f"{args.peer} against float64, gates {gates}, T = {tokens}: output {output:.2e}, state {state:.2e}")


if __name__ == "__main__":
    main()
