"""The training of an MTP layer (tools/mtp_layer.py) for a model whose own weights stay as they are; the commands
`train-mtp`, `mtp-texts`, `mtp-measure` and `add-mtp` of tools/train_story_model.py.

`train-mtp` writes to --out, every 30 seconds: log.txt, log.json, last.safetensors and best.safetensors, the layer that
had most drafts accepted. Documents come from the stream that the trunk is trained with, and, for --own of the steps,
from the trunk itself, which goes on with their beginnings greedily. Drafts are counted on the texts of `mtp-texts`:
test stories and conversations, and how the trunk went on with each. Muon trains the matrices; the layer is measured,
and in the last part trained in every other step, with its matrices rounded as a format of --bits bits holds them.
"""

import json
import multiprocessing
import os
import random
import subprocess
import time

import mtp_layer
import torch
import train_story_model as story

MEASURED = 4  # drafts that are counted
THALWEG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "release", "bin", "thalweg")


def load_trunk(folder, device, kind=None):
    from transformers import Qwen3_5MoeForCausalLM

    kind = kind or (torch.bfloat16 if device == "cuda" else torch.float32)
    return Qwen3_5MoeForCausalLM.from_pretrained(folder, dtype=kind).to(device).requires_grad_(False).eval()


@torch.no_grad()
def continued(trunk, ids, more):
    """ids [B,T] with the `more` tokens that greedy decoding appends, the end of the text being a token like others."""
    out = trunk(input_ids=ids, use_cache=True, logits_to_keep=1)
    made = [ids]
    for n in range(more):
        made.append(out.logits[:, -1:].argmax(-1))
        if n + 1 < more:
            out = trunk(input_ids=made[-1], past_key_values=out.past_key_values, use_cache=True, logits_to_keep=1)
    return torch.cat(made, 1)


def arithmetic(trunk):
    return torch.autocast(trunk.device.type, torch.bfloat16, enabled=trunk.dtype == torch.bfloat16)


def begin_with_trunk(layer, trunk):
    """The trunk's last attention and final norm, and a state that passes through: a good place to begin at."""
    model, own = trunk.model, layer.layers[0]
    last = [block for block in model.layers if hasattr(block, "self_attn")][-1]
    own.self_attn.load_state_dict({name: p.float() for name, p in last.self_attn.state_dict().items()})
    with torch.no_grad():
        own.input_layernorm.weight.copy_(last.input_layernorm.weight)
        layer.norm.weight.copy_(model.norm.weight)
        size = layer.fc.weight.shape[0]
        layer.fc.weight[:, size:].add_(torch.eye(size, device=trunk.device))


def document_stream(options):
    """A function that gives the next (ids, weights) [B,T] on the CPU, of any length up to 2048. Workers are forked,
    before CUDA starts."""
    stream = type("Stream", (story.Batches, torch.utils.data.IterableDataset), {})
    stage = multiprocessing.Value("d", 0.3)  # of the trunk's curriculum
    data = stream(os.path.join(options.model, "tokenizer.json"), f"mtp {options.seed}", stage)
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=options.workers, prefetch_factor=3, multiprocessing_context="fork"
    )
    batches = iter(loader)

    def following():
        ids, _, kinds = next(batches).unbind(0)
        weights = (kinds == story.ANSWER).float() + options.story_weight * (kinds == story.STORY).float()
        return ids, weights

    return following


class Source:
    """Batches (ids, weights) of `tokens` tokens on the device, of documents or of the trunk's own texts; the latter,
    which take long to make, are each used --own-uses times."""

    def __init__(self, trunk, following, options, device):
        self.trunk, self.following, self.options, self.device = trunk, following, options, device
        self.rng = random.Random(options.seed)
        self.documents, self.own = [], []

    def parts(self, ids, weights):
        rows = max(1, self.options.tokens // ids.shape[1])
        parts = zip(*(t.to(self.device).split(rows) for t in (ids, weights)))
        return [(ids.long(), weights) for ids, weights in parts if weights.any()]

    def batch(self, own):
        while own and not self.own:
            made = self.parts(*self.own_texts())
            self.own = [part for _ in range(self.options.own_uses) for part in self.rng.sample(made, len(made))]
        while not own and not self.documents:
            self.documents = self.parts(*self.following())
        return (self.own if own else self.documents).pop()

    def own_texts(self):
        """(ids, weights) of beginnings of one length, each with --own-tokens tokens of the trunk behind it."""
        rows, cut, more = [], self.rng.randint(24, 136), self.options.own_tokens
        while sum(map(len, rows)) < self.options.own_rows:
            ids, weights = self.following()
            if ids.shape[1] in (256, 512):  # whose documents are longer than `cut`
                rows.append(ids[:, :cut])
            else:
                self.documents += self.parts(ids, weights)
        ids = torch.cat(rows)[: self.options.own_rows].to(self.device).long()
        ids = continued(self.trunk, ids, more)
        weights = torch.zeros(ids.shape, device=self.device)
        weights[:, cut - 1 : -1] = 1
        order = torch.randperm(len(ids), device=self.device)
        return ids[order], weights[order]


class Texts:
    """Texts of `mtp-texts` with the trunk's states, on which drafts are counted: of all that the trunk went on with, by
    kind, and of the answers up to their ends."""

    def __init__(self, path, trunk, device):
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        self.groups = []
        for kind in sorted({row["kind"] for row in rows}):
            of_kind = sorted((row for row in rows if row["kind"] == kind), key=lambda row: len(row["ids"]))
            for at in range(0, len(of_kind), 64):
                self.groups.append((kind, *self.padded(of_kind[at : at + 64], trunk, device)))

    @torch.no_grad()
    def padded(self, rows, trunk, device):
        longest = max(len(row["ids"]) for row in rows)
        ids = torch.zeros((len(rows), longest), dtype=torch.long)
        counted, answers = torch.zeros((2, len(rows), longest), dtype=torch.bool)
        for r, row in enumerate(rows):
            ids[r, : len(row["ids"])] = torch.tensor(row["ids"])
            counted[r, row["prompt"] - 1 : len(row["ids"]) - MEASURED - 1] = True
            answers[r, row["prompt"] - 1 : row["prompt"] + row["answer"] - 2] = True
        ids = ids.to(device)
        hidden = trunk.model(input_ids=ids, use_cache=False).last_hidden_state
        return ids, counted.to(device), (answers & counted).to(device), hidden

    def measure(self, layer, trunk):
        """{kind: [share of places where the first n drafts are right, n = 1 to MEASURED]}"""
        sums = {}
        for kind, ids, counted, answers, hidden in self.groups:
            with arithmetic(trunk):
                right = mtp_layer.accepted(layer, trunk.get_input_embeddings(), trunk.lm_head, ids, hidden, MEASURED)
            for name, places in ((kind, counted), ("answers", answers)):
                total = sums.setdefault(name, torch.zeros(MEASURED + 1))
                total[:MEASURED] += (right & places).sum((1, 2)).cpu()
                total[MEASURED] += places.sum().cpu()
        return {kind: (total[:-1] / total[-1]).tolist() for kind, total in sums.items()}


class Record:
    """The log and the layers in --out; a file is replaced when the new one is whole."""

    def __init__(self, folder):
        os.makedirs(folder, exist_ok=True)
        self.folder, self.best, self.rows = folder, -1.0, []

    def say(self, line):
        print(line, flush=True)
        with open(os.path.join(self.folder, "log.txt"), "a", encoding="utf-8") as text:
            text.write(line + "\n")

    def replace(self, name, write):
        path = os.path.join(self.folder, name)
        write(path + ".new")
        os.replace(path + ".new", path)

    def save(self, tensors, row):
        """`row` has the drafts accepted by kind; returns whether it is the best one so far."""
        from safetensors.torch import save_file

        score = sum(sum(shares) for shares in row["accepted"].values()) / len(row["accepted"])
        row["score"] = round(score, 4)
        self.rows.append(row)
        best = score > self.best
        self.best = max(score, self.best)
        for name in ("last", "best") if best else ("last",):
            self.replace(name + ".safetensors", lambda path: save_file(tensors, path, {"format": "pt"}))

        def write(path):
            with open(path, "w", encoding="utf-8") as file:
                json.dump(self.rows, file, indent=1)

        self.replace("log.json", write)
        return best


def named(layer):
    return {"mtp." + name: p.detach().float().contiguous().cpu() for name, p in layer.named_parameters()}


def report(record, texts, layer, trunk, optimizer, row):
    optimizer.write(True)
    layer.eval()
    row["accepted"] = texts.measure(layer, trunk)
    optimizer.write()
    layer.train()
    best = record.save(named(layer), row)
    shares = "  ".join(
        f"{kind} {' '.join(f'{100 * share:.1f}' for share in row['accepted'][kind])}" for kind in row["accepted"]
    )
    record.say(
        f"{row['seconds']:6.1f} s step {row['step']:6d} {row['tokens'] / 1e6:7.2f} M tokens loss {row['loss']:.4f} "
        f"drafts right, % | {shares} | accepted {row['score']:.3f}{' best' if best else ''}"
    )


def one_step(layer, trunk, optimizer, batch, options, rate):
    """(loss, shares of right drafts) of one step, as tensors."""
    ids, weights = batch
    with torch.no_grad():
        hidden = trunk.model(input_ids=ids, use_cache=False).last_hidden_state
    with arithmetic(trunk):
        loss, right = mtp_layer.losses(
            layer, trunk.get_input_embeddings(), trunk.lm_head, ids, hidden, weights, options.depth
        )
        balance = getattr(layer.layers[0].mlp, "balance", 0.0)
    (loss + 0.01 * balance).backward()
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    optimizer.step(options.lr_matrix * rate, options.lr_small * rate)
    layer.zero_grad(set_to_none=True)
    return loss.detach(), right


def train(options):
    """Trains until --seconds after its start, or for --steps."""
    began = time.time()
    following = document_stream(options)
    first = following()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    record = Record(options.out)
    trunk = load_trunk(options.model, device, options.dtype and getattr(torch, options.dtype))
    trunk.config.intermediate_size = options.dense
    layer = mtp_layer.MtpLayer(trunk.config, options.dense > 0).to(device)
    if options.init:
        from safetensors.torch import load_file

        layer.load_state_dict({k.removeprefix("mtp."): v for k, v in load_file(options.init).items()})
    else:
        begin_with_trunk(layer, trunk)
    optimizer = story.Optimizer(layer, options.bits)
    texts = Texts(options.texts, trunk, device)
    source = Source(trunk, following, options, device)
    source.following = lambda kept=[first]: kept.pop() if kept else following()
    name = torch.cuda.get_device_name() if device == "cuda" else device
    size = sum(p.numel() for p in layer.parameters()) / 1e6
    record.say(f"{size:.2f} M parameters, torch {torch.__version__} on {name}, ready after {time.time() - began:.0f} s")

    start, last, step, tokens, kept = time.time(), time.time(), 0, 0, []
    ends = began + options.seconds - options.reserve
    while True:
        now = time.time()
        share = max(step / options.steps, (now - start) / max(1e-6, ends - start))
        if step and (share >= 1 or now - last > options.report_every or step == 10):
            row = {"seconds": round(now - began, 1), "step": step, "tokens": tokens}
            row["loss"] = round(float(torch.stack(kept).mean()), 4)
            optimizer.write()
            report(record, texts, layer, trunk, optimizer, row)
            last, kept = time.time(), []
        if share >= 1:
            break
        rate = min(1.0, (step + 1) / options.warmup) * max(0.02, min(1.0, (1 - share) / 0.7))
        optimizer.write(share > options.quantize_from and step % 2 == 0)
        own = share > 0.15 and source.rng.random() < options.own
        batch = source.batch(own)
        loss, _ = one_step(layer, trunk, optimizer, batch, options, rate)
        kept.append(loss)
        tokens += batch[0].numel()
        step += 1
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    record.say(f"done after {time.time() - began:.0f} s, {memory:.0f} GiB")


def continued_by_thalweg(file, ids, more, end):
    """ids with the `more` tokens that `thalweg generate` appends; where it ends the text, it goes on behind the end."""
    size = len(ids) + more
    while len(ids) < size:
        command = [THALWEG, "generate", "-q", "--json", "-m", file, "-n", str(size - len(ids))]
        command += ["--token-ids", ",".join(map(str, ids))]
        made = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        ids = ids + made["tokens"] + ([end] if made["stopped"] == "end" else [])
    return ids[:size]


def make_texts(options):
    """Test stories and conversations with what the trunk, in float32, or the --file goes on with: lines of JSON."""
    import tokenizers

    path = os.path.join(options.model, "tokenizer.json")
    trunk = None if options.file else load_trunk(options.model, "cpu", torch.float32)
    tokenizer = tokenizers.Tokenizer.from_file(path)
    ends = [tokenizer.token_to_id(token) for token in story.SPECIAL]
    counts = [("200", options.count), ("500", options.count // 3), ("conversations", options.count)]
    counts = [(name, count) for name, count in counts if count]
    with open(options.out, "w", encoding="utf-8") as file:
        for name, count in counts:
            _, rows = story.test_rows((path, name, count, options.seed))
            for prompt, _, _ in rows:
                if trunk:
                    ids = continued(trunk, torch.tensor([prompt]), options.tokens)[0].tolist()
                else:
                    end = ends[-1 if name == "conversations" else 0]
                    ids = continued_by_thalweg(options.file, prompt, options.tokens, end)
                made = ids[len(prompt) :]
                answer = next((n for n, token in enumerate(made, 1) if token in ends), len(made))
                kind = "conversations" if name == "conversations" else "stories"
                row = {"kind": kind, "prompt": len(prompt), "answer": answer, "ids": ids}
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
                file.flush()


def add(options):
    """Puts a trained layer into the folder of its model, from which `thalweg quantize` makes a file."""
    from safetensors.torch import load_file

    tensors = load_file(options.layer)
    gate = tensors.get("mtp.layers.0.mlp.gate_proj.weight")
    mtp_layer.save_layer(tensors, options.model, 0 if gate is None else gate.shape[0])


def layer_of_file(path):
    """The state of an MtpLayer without experts from a GGUF file, with the values that its types hold."""
    import gguf
    import mtp_file

    begins = f"blk.{mtp_file.File(path).trunk_layers}."
    attention = {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "o_proj"}
    names = {name: f"layers.0.self_attn.{to}" for name, to in attention.items()}
    names |= {f"attn_{part}_norm": f"layers.0.self_attn.{part}_norm" for part in "qk"}
    names |= {f"ffn_{part}": f"layers.0.mlp.{part}_proj" for part in ("gate", "up", "down")}
    names |= {"attn_norm": "layers.0.input_layernorm", "post_attention_norm": "layers.0.post_attention_layernorm"}
    names |= {"nextn.enorm": "pre_fc_norm_embedding", "nextn.hnorm": "pre_fc_norm_hidden"}
    names |= {"nextn.eh_proj": "fc", "nextn.shared_head_norm": "norm"}
    tensors = {}
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name.startswith(begins):
            name = tensor.name.removeprefix(begins).removesuffix(".weight")
            values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy()).float()
            tensors[f"{names[name]}.weight"] = values - 1 if name.endswith("norm") else values  # norms hold the 1 there
    return tensors


def measure(options):
    """Prints how many drafts of a GGUF file's layer are right on texts of `mtp-texts`."""
    tensors = layer_of_file(options.file)
    trunk = load_trunk(options.model, "cpu", torch.float32)
    trunk.config.intermediate_size = tensors["layers.0.mlp.gate_proj.weight"].shape[0]
    layer = mtp_layer.MtpLayer(trunk.config, True)
    layer.load_state_dict(tensors)
    texts = Texts(options.texts, trunk, "cpu")
    places = {}
    for kind, _, counted, answers, _ in texts.groups:
        for name, of_kind in ((kind, counted), ("answers", answers)):
            places[name] = places.get(name, 0) + int(of_kind.sum())
    for kind, shares in texts.measure(layer, trunk).items():
        print(f"{kind}: {places[kind]} places, right {' '.join(f'{100 * share:.1f}' for share in shares)} %")


def add_commands(commands):
    part = commands.add_parser("train-mtp", help="train an MTP layer, with the trunk as it is")
    part.set_defaults(run=train)
    part.add_argument("--model", required=True, help="folder of an exported model")
    part.add_argument("--texts", required=True, help="file of mtp-texts, on which drafts are counted")
    part.add_argument("--out", required=True, help="folder for the layer and the log")
    part.add_argument("--init", help="layer to go on from, a file of --out")
    part.add_argument("--seconds", type=float, default=1200, help="end after so many, those until training starts too")
    part.add_argument("--reserve", type=float, default=8, help="seconds kept for the last report")
    part.add_argument("--steps", type=int, default=10**9, help="or end after so many")
    part.add_argument("--report-every", type=float, default=30, help="seconds")
    part.add_argument("--tokens", type=int, default=49152, help="of a step")
    part.add_argument("--depth", type=int, default=3, help="drafts that are learnt")
    part.add_argument(
        "--dense", type=int, default=512, help="width of the layer without experts; 0: experts as the trunk"
    )
    part.add_argument("--bits", type=int, default=4, help="that matrices are rounded to")
    part.add_argument("--quantize-from", type=float, default=0.6, help="share of the training")
    part.add_argument("--story-weight", type=float, default=0.3, help="of tokens outside of answers")
    part.add_argument("--own", type=float, default=0.15, help="share of steps on the trunk's own texts")
    part.add_argument("--own-rows", type=int, default=3072, help="texts made at once")
    part.add_argument("--own-uses", type=int, default=3, help="of each of them")
    part.add_argument("--own-tokens", type=int, default=96, help="that the trunk makes of each")
    part.add_argument("--lr-matrix", type=float, default=8e-3)
    part.add_argument("--lr-small", type=float, default=3e-3)
    part.add_argument("--warmup", type=int, default=50)
    part.add_argument("--dtype", choices=("bfloat16", "float32"), help="of the trunk; default: bfloat16 on a GPU")
    part.add_argument("--seed", default="1")
    part.add_argument("--workers", type=int, default=13)
    part = commands.add_parser("mtp-texts", help="texts on which train-mtp counts drafts")
    part.set_defaults(run=make_texts)
    part.add_argument("--model", required=True, help="folder of an exported model")
    part.add_argument("--file", help="GGUF file of the model, to go on with by build/release/bin/thalweg: sooner")
    part.add_argument("--out", required=True, help="file of JSON lines")
    part.add_argument(
        "--count", type=int, default=150, help="conversations, as many stories of 200 tokens, a third of 500"
    )
    part.add_argument("--tokens", type=int, default=48, help="that the model goes on with")
    part.add_argument("--seed", type=int, default=20)
    part = commands.add_parser("mtp-measure", help="count the drafts of a file's layer that are right")
    part.set_defaults(run=measure)
    part.add_argument("--model", required=True, help="folder of the file's trunk, by unpack")
    part.add_argument("--file", required=True, help="GGUF file with a layer without experts")
    part.add_argument("--texts", required=True, help="file of mtp-texts")
    part = commands.add_parser("add-mtp", help="put a layer of train-mtp into its model's folder")
    part.set_defaults(run=add)
    part.add_argument("--model", required=True, help="folder of an exported model")
    part.add_argument("--layer", required=True, help="file of train-mtp")
