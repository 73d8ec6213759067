#!/usr/bin/env python3
"""Times a peer's chunk_gated_delta_rule on this machine's GPU, on the shapes of `thalweg bench --suite published`.

    pip install torch flash-linear-attention flash-qla flashinfer-python
    python3 tools/peer_prefill.py [--peer fla|flashqla|flashinfer|thalweg] [--rows REGEX] [--csv FILE] [--error [FILE]]

Inputs are as the published table has them: q and k of norm 1, v normal, g = logsigmoid(normal) / 16 with every fourth
head at 0, beta = sigmoid(normal), a normal initial state; bf16 and f32. Kernels are compiled and tuned before the
clock starts; a time is the median over replays of a CUDA graph. With --error, the relative l2 errors of output and
final state against the recurrence in float64 are printed, and appended to a file, for gates from none to strong; every
peer gets the same inputs, FlashInfer with gates exponentiated and states transposed, as it wants them, before the clock
starts. `--peer thalweg` is this library's Python package, to compare it in just that way.
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
# Columns of the suite.
PUBLISHED = {"fla": "fla_0_5_1_ms", "flashqla": "flashqla_ms", "flashinfer": "flashinfer_0_6_13_ms"}
# A dozen rows over all kinds of shapes: few and many heads, one and several sequences.
CALIBRATION = [
    ("2", "8", "1x32768"), ("2", "8", "4096x8"), ("4", "16", "1x16384"), ("4", "16", "1024x8"),
    ("16", "32", "1x32768"), ("16", "32", "1x8192"), ("16", "32", "8192x4"), ("16", "32", "1024x8"),
    ("16", "64", "1x32768"), ("16", "64", "4096+4096"), ("16", "16", "2048x4"), ("32", "32", "1x2048"),
]


def thalweg_rule(q, k, v, g, beta, initial_state, output_final_state, cu_seqlens=None):
    from thalweg import ops

    final = torch.empty_like(initial_state)
    bounds = None if cu_seqlens is None else cu_seqlens.int()
    output = ops.chunk_gated_delta_rule(q, k, v, g, beta, head_map="grouped", initial_state=initial_state,
                                        final_state=final, state_layout="kv", cu_seqlens=bounds)
    return output, final


def rule_of(peer):
    if peer == "thalweg":
        return thalweg_rule
    if peer == "flashqla":
        from flash_qla import chunk_gated_delta_rule
    elif peer == "flashinfer":
        from flashinfer.gdn_prefill import chunk_gated_delta_rule
    else:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    return chunk_gated_delta_rule


def bind(peer, rule, q, k, v, g, beta, state, lengths, bounds):
    """A function without arguments that runs the peer's rule, and returns output and final state [N,HV,K,V]."""
    if peer == "flashinfer":
        arguments = [x[0] for x in (q, k, v, g.exp(), beta)]  # no batch dimension
        state_vk = state.transpose(-1, -2).contiguous()

        def run():
            output, final = rule(*arguments, initial_state=state_vk, output_final_state=True, cu_seqlens=bounds,
                                 max_seqlen=max(lengths))
            return output[None], final.transpose(-1, -2)

        return run
    packed = bounds if len(lengths) > 1 else None
    return lambda: rule(q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True, cu_seqlens=packed)


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


# Gates of all heads, as functions of those of the published table.
GATES = {
    "none": torch.zeros_like,
    "published": lambda g: g,
    "medium": lambda g: torch.full_like(g, -0.1),
    "strong": lambda g: torch.full_like(g, -2.0),
    "periodic": lambda g: torch.where(torch.arange(g.shape[1], device=g.device)[None, :, None] % 7 == 3, -5.0, 0.1 * g),
}


def errors(peer, rule, tokens, hk, hv, gates):
    """Relative l2 errors of output and final state, against the recurrence in float64."""
    generator = torch.Generator(device="cuda").manual_seed(tokens)
    q, k, v, g, beta, state, bounds = make_inputs([tokens], hk, hv, generator)
    g = GATES[gates](g).contiguous()
    with torch.no_grad():
        output, final = bind(peer, rule, q, k, v, g, beta, state, [tokens], bounds)()
    repeat = hv // hk
    qd, kd = (x.double().repeat_interleave(repeat, dim=2)[0] for x in (q, k))
    vd, decay, bd = v.double()[0], g.double()[0].exp(), beta.double()[0]
    s = state[0].double()  # [HV,K,V]
    exact = torch.empty(tokens, hv, HEAD, device="cuda", dtype=torch.float64)

    def step(t):
        s.mul_(decay[t][:, None, None])
        delta = bd[t][:, None] * (vd[t] - torch.bmm(kd[t][:, None, :], s)[:, 0])
        s.baddbmm_(kd[t][:, :, None], delta[:, None, :])
        exact[t] = torch.bmm(qd[t][:, None, :], s)[:, 0] * HEAD**-0.5

    for t in range(tokens):
        step(t)
    return relative(output[0], exact), relative(final[0], s)


def append(path, names, rows):
    new = not os.path.exists(path)
    with open(path, "a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(names)
        writer.writerows(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=["fla", "flashqla", "flashinfer", "thalweg"], default="fla")
    parser.add_argument("--rows", help="regular expression over '(HK,HV) SEQUENCES'; a dozen rows without it")
    parser.add_argument("--csv", help="append the times to this file")
    parser.add_argument("--error", nargs="?", const="", metavar="FILE", help="errors against float64 and no times")
    args = parser.parse_args()
    rule = rule_of(args.peer)
    if args.error is not None:
        written = []
        for gates in GATES:
            for tokens in (100, 2048):
                output, state = errors(args.peer, rule, tokens, 4, 8, gates)
                print(f"{args.peer} against float64, gates {gates}, T = {tokens}: output {output:.2e}, state {state:.2e}",
                      flush=True)
                written.append([args.peer, gates, tokens, f"{output:.2e}", f"{state:.2e}"])
        if args.error:
            append(args.error, ["peer", "gates", "tokens", "output_error", "state_error"], written)
        return
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
        with torch.no_grad():
            ms = milliseconds(bind(args.peer, rule, q, k, v, g, beta, state, lengths, bounds))
        published = row.get(PUBLISHED.get(args.peer), "")
        ratio = f", published {published}, ratio {ms / float(published):.3f}" if published else ""
        print(f"({hk},{hv}) {name:<14} {args.peer} {ms:8.4f} ms{ratio}", flush=True)
        written.append([args.peer, hk, hv, name, f"{ms:.5f}", published])
    if args.csv:
        append(args.csv, ["peer", "num_k_heads", "num_v_heads", "seqlens", "ms", "published_ms"], written)


if __name__ == "__main__":
    main()
