#!/usr/bin/env python3
"""Makes tests/text/goldens: byte-level BPE tokenizers and what the package tokenizers gives with them.

    python3 -m venv venv
    venv/bin/pip install tokenizers==0.23.3
    venv/bin/python tools/make_tokenizer_goldens.py tests/text/goldens

generator.json         what strings are made of: lists of pieces, ranges of code points, kinds of strings
<name>.tokenizer.json  trained on such strings
<name>.goldens.json    FNV-1a over the ids of blocks of strings, and some strings with all their ids

tests/text/golden_strings.cc makes the same strings from generator.json, so that they need not be stored: string i of a seed
is drawn with splitmix64, whose first state is the (i + seed * 2^32)th state's own output. See Strings below.

The code points are those assigned in Unicode 13, because later ones differ between libraries. The ranges in
generator.json are kept if the file is there; without it they come from Perl, which knows Unicode's Age property.
"""

import argparse
import bisect
import json
import pathlib
import subprocess

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

MASK = (1 << 64) - 1
TRAINING_SEED, TEST_SEED = 1, 2
STRINGS, BLOCK, FULL, CODE_POINT_BLOCK = 24000, 200, 50, 1000

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
         r"\s+(?!\S)|\s+")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
# One without a name: groups of digits, \u, a class with escapes, a possessive repeat, text that it leaves between.
OTHER = r"\p{N}{1,3}|[\p{L}\u0300-\u036F']++|[^\s\p{L}\p{N}\-]+|\s+(?=\S)|(?<![\p{L}])\s"

WORDS = """the of and to in a is that it was for on with as his they be at one have this from or had by hot word but
what some we can out other were all there when up use your how said an each she which do their time if will way about
many then them write would like so these her long make thing see him two has look more day could go come did number
sound no most people my over know water than call first who may down side been now find any new work part take get
place made live where after back little only round man year came show every good me give our under name very through
just form sentence great think say help low line differ turn cause much mean before move right boy old too same tell
does set three want air well also play small end put home read hand port large spell add even land here must big high
such follow act why ask men change went light kind off need house picture try us again animal point mother world near
build self earth father naïve café Zürich señor Straße façade Ångström jalapeño ПРИВЕТ мир слово Ελληνικά λόγος
שלום مرحبا नमस्ते สวัสดี Việt Nam İstanbul ſtop Kelvin ﬁsh ǅ""".split()

LISTS = {
    "words": WORDS + [word.capitalize() for word in WORDS[:60]] + [word.upper() for word in WORDS[:30]],
    "blank": [" "],
    "spaces": [" ", " ", " ", "  ", "   ", "    ", "\t", "\n", "\n\n", "\r\n", "\r", "\u00a0", "\u3000", "\u0085",
               "\u180e", "\u200b", "\u2028", "\u2029", "\u202f", "\u2009", "\u1680", "\u000b", "\u000c", "\u001c",
               "\u001f", "\u0000", "\ufeff", " \n", "\n ", " \t ", "                ", "\n\n\n\n"],
    "punctuation": list(".,;:!?()[]{}<>\"'`~@#$%^&*-_=+/\\|") + ["...", "--", "''", "“", "”", "’", "…", "—", "¿", "«"],
    "digits": list("0123456789") + ["00", "123", "2024", "3.14", "1,000,000", "9999999999999999", "٣", "४", "５", "½",
                                    "Ⅷ", "①", "²", "𝟗", "〇", "一"],
    "contractions": ["'s", "'S", "'t", "'T", "'re", "'RE", "'rE", "'ve", "'Ve", "'m", "'M", "'ll", "'LL", "'d", "'D",
                     "'ſ", "'ſt", "'lL", "'", "''s", "’s", "'x", "'sa", "'rest", "'v", "'l", "ʼn", "ŉ", "'ß", "'ᵐ"],
    "han": ["你", "好", "世", "界", "中", "文", "語", "漢", "字", "人", "工", "智", "能", "今天天气很好", "東京都", "𠀀", "𪚥", "豈",
            "﨑", "，", "。", "、", "「", "」", "！", "（", "）", "・", "々", "〆"],
    "kana": list("あいうえおかきくけこがぎぐげごアイウエオカキクケコパピプペポー") + ["か\u3099", "ハ\u309a", "ｶﾞ", "です", "ます"],
    "hangul": ["한국어", "안녕", "하세요", "가", "각", "힣", "\u1100\u1161", "\u1112\u1161\u11ab", "가\u11a8", "ㄱ"],
    "emoji": list("😀😂🥰👍🎉🚀🔥🐍🍕👨👩👧👦💻🌈❤☺☀⚡🏳🏴🧑🤝") + ["1️⃣", "#️⃣", "🇩🇪", "🇯🇵", "🇺🇳", "👩‍💻", "👨‍👩‍👧‍👦",
             "🏳️‍🌈", "❤️", "☺️", "🧑🏽‍🤝‍🧑🏻", "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"],
    "joiners": ["\u200d", "\ufe0f", "\ufe0e", "🏻", "🏽", "🏿", "\u20e3", "🇦", "🇿", "\u200c"],
    "marks": ["\u0300", "\u0301", "\u0302", "\u0303", "\u0308", "\u030a", "\u0316", "\u0323", "\u0327", "\u0328",
              "\u031b", "\u0338", "\u0344", "\u0345", "\u035c", "\u0360", "\u0591", "\u05b4", "\u05bf", "\u064b",
              "\u0651", "\u0653", "\u0670", "\u093c", "\u09be", "\u0bd7", "\u0dcf", "\u0dca", "\u0e38", "\u0f71",
              "\u0f72", "\u1133", "\u1161", "\u11a8", "\u20d0", "\u3099", "\u309a", "\u302a", "\U0001d165",
              "\U0001d16e", "\U00011131", "\U00011127", "\u1dce", "\u0333", "\u07f3"],
    "bases": list("aeiounycszAEIOUÅåÑç") + ["\u212b", "\u2126", "\u1e9b", "\u0915", "\u09c7", "\u0bc6", "\u0dd9",
             "\u0f40", "\u1100", "\uac00", "\u304b", "\u2adc", "\ufb1d", "\uf900", "\u0958", "\u0340", "\u0374", "\u037e",
             "\u1fef", "\u226a", "=", "<", "\U0001d15e", "\U00011131", "\U0002f800", "\u06d5", "\u0627", "\u00df"],
    "code": ["def f(x):\n    return x**2\n", "for (int i = 0; i < n; ++i) {\n\t", "}\n\n", "std::vector<float>", "0xFF",
             "#include <cmath>\n", "    if x != None:\n        ", "print(f\"{a!r}\")", "// comment\n", "/* */", "->", "=>",
             "!=", "&&", "||", "'\\n'", "1e-5f", "snake_case", "camelCase", "SELECT * FROM t WHERE a='b';\n", "<div class=\"x\">",
             "</div>\r\n", "\\frac{1}{2}", "$HOME/.config", "a[i][j]", "){", "\t\t\t", "==="],
    "special": ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "<|im", "_start|>",
                "<|im_start|", "<thin", "<|endoftext", "|>", "<|", "<|im_start|>user\n", "assistant\n", "<<think>>", "<|IM_END|>",
                "caf\u00e9!", "cafe\u0301!", "e\u0301", "\u00e9", "two words", "two  words", "two"],
}

KINDS = [
    {"name": "code points", "draw": ["#"], "most": 30},
    {"name": "code points in text", "draw": ["#", "words", "spaces", "punctuation"], "most": 30},
    {"name": "emoji", "draw": ["emoji", "emoji", "joiners", "blank"], "most": 20},
    {"name": "emoji in text", "draw": ["emoji", "joiners", "words", "spaces", "marks"], "most": 20},
    {"name": "CJK", "draw": ["han", "kana", "hangul", "spaces", "digits"], "most": 30},
    {"name": "code", "draw": ["code", "code", "words", "spaces", "punctuation", "digits"], "most": 20},
    {"name": "digits", "draw": ["digits"], "most": 80},
    {"name": "digits in text", "draw": ["digits", "digits", "words", "spaces", "punctuation"], "most": 30},
    {"name": "white space", "draw": ["spaces", "spaces", "spaces", "words", "punctuation"], "most": 40},
    {"name": "contractions", "draw": ["words", "contractions", "contractions", "blank"], "most": 30},
    {"name": "marks", "draw": ["bases", "marks", "marks"], "most": 40},
    {"name": "marks in text", "draw": ["bases", "marks", "words", "spaces", "digits", "punctuation"], "most": 40},
    {"name": "English", "draw": ["words", "blank", "words", "blank", "punctuation", "blank"], "most": 120},
    {"name": "special tokens", "draw": ["special", "special", "words", "spaces", "marks", "contractions"], "most": 20},
    {"name": "everything", "draw": ["#", *LISTS], "most": 30},
    {"name": "broken bytes", "draw": ["#", "words", "han", "emoji", "special"], "most": 20, "damage": 12},
]


def assigned_ranges():
    """What Unicode 13 assigns, without surrogates and the private planes 15 and 16."""
    program = (r'for my $c (0..0xEFFFF) { next if $c >= 0xD800 && $c <= 0xDFFF; '
               r'print "$c\n" if chr($c) =~ /\p{In=13.0}/ && chr($c) !~ /\p{Cn}/ }')
    numbers = subprocess.run(["perl", "-e", program], check=True, capture_output=True, text=True).stdout.split()
    ranges = []
    for number in map(int, numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    # 143,859 characters, 65 controls and the private characters of the basic plane.
    assert sum(high - low + 1 for low, high in ranges) == 143859 + 65 + 6400
    return ranges


class Random:
    def __init__(self, state):
        self.state = state

    def bits(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        return self.bits() % n


class Strings:
    def __init__(self, generator):
        self.ranges, self.lists, self.kinds = generator["ranges"], generator["lists"], generator["kinds"]

    def piece(self, source, random):
        if source != "#":
            return self.lists[source][random.below(len(self.lists[source]))]
        low, high = self.ranges[random.below(len(self.ranges))]
        return chr(low + random.below(high - low + 1))

    def make(self, seed, index):
        """The bytes of a string; those of the kinds with damage are not always UTF-8."""
        random = Random(Random(index + (seed << 32)).bits())
        kind = self.kinds[index % len(self.kinds)]
        count = 1 + random.below(kind["most"])
        text = []
        for _ in range(count):
            source = kind["draw"][random.below(len(kind["draw"]))]
            text.append(self.piece(source, random))
        whole = "".join(text).encode()
        data = bytearray(whole)
        for _ in range(kind.get("damage", 0)):
            operation, place, byte = random.below(4), random.below(len(data) + 1), random.below(256)
            if operation == 0 or place == len(data):
                data.insert(place, byte)
            elif operation == 1:
                data[place] = byte
            elif operation == 2:
                del data[place]
            else:
                data[place] |= 0x80
        # Damage may make characters that libraries of different age know or do not know.
        known = all(map(self.is_assigned, data.decode("utf-8", errors="replace")))
        return bytes(data) if known else whole

    def is_assigned(self, character):
        at = bisect.bisect_right(self.ranges, [ord(character), MASK]) - 1
        return at >= 0 and ord(character) <= self.ranges[at][1]

    def text(self, seed, index):
        return self.make(seed, index).decode("utf-8", errors="replace")

    def code_points(self):
        """Each code point as part of a word, a number, a contraction, alone, doubled, beside blanks and line ends."""
        for low, high in self.ranges:
            for number in range(low, high + 1):
                c = chr(number)
                yield f"a{c}b 1{c}{c}2 {c}{c} '{c} we'{c}\n{c} \r\n {c}\t{c}e\u0301{c}\u0323\u0302\u3099{c}"


def split(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
    ])


def special(content):
    return AddedToken(content, special=True, normalized=False)


def added(content, normalized=False):
    return AddedToken(content, special=False, normalized=normalized)


FAMILY = [special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>"), added("<think>"), added("</think>")]
# name: vocabulary, pre-tokenizer, normalizer, tokens known to the trainer, tokens added later, ignore_merges
TOKENIZERS = {
    "qwen35": (2000, split(QWEN35), normalizers.NFC(), [], FAMILY, False),
    # Tokens that begin alike, and tokens looked for after NFC.
    "qwen2": (2000, split(QWEN2), normalizers.NFC(), [special("<|endoftext|>")],
              [special("<|im_start|>"), added("<|im"), special("<|im_end|>"), added("cafe\u0301!", True),
               added("two words", True), added("\u00e9", True)], False),
    "gpt2": (600, pre_tokenizers.ByteLevel(add_prefix_space=False), None, [special("<|endoftext|>")], [], True),
    "other": (600, split(OTHER), normalizers.Sequence([normalizers.NFC()]), [], [special("<|endoftext|>")], False),
}


def train(name, strings):
    vocabulary, pre_tokenizer, normalizer, first, later, ignore_merges = TOKENIZERS[name]
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=first, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((strings.text(TRAINING_SEED, i) for i in range(STRINGS // 2)), trainer)
    tokenizer.add_tokens([token for token in later if not token.special])
    tokenizer.add_special_tokens([token for token in later if token.special])
    return tokenizer


def hashes(encodings, block):
    """FNV-1a over little-endian words: the number of ids of each string, then the ids."""
    result, value, count = [], 0xCBF29CE484222325, 0
    for encoding in encodings:
        for number in [len(encoding.ids), *encoding.ids]:
            for byte in number.to_bytes(4, "little"):
                value = ((value ^ byte) * 0x100000001B3) & MASK
        count += 1
        if count % block == 0:
            result.append(f"{value:016x}")
            value = 0xCBF29CE484222325
    if count % block:
        result.append(f"{value:016x}")
    return result


def goldens(tokenizer, strings):
    texts = [strings.text(TEST_SEED, i) for i in range(STRINGS)]
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    full = [i * (STRINGS // FULL) + i for i in range(FULL)]
    result = {
        "package": f"tokenizers {tokenizers.__version__}", "seed": TEST_SEED, "strings": STRINGS, "block": BLOCK,
        "special": hashes(encodings, BLOCK),
        "full": [{"index": i, "text": texts[i], "ids": encodings[i].ids} for i in full],
        "code_point_block": CODE_POINT_BLOCK,
        "code_points": hashes(tokenizer.encode_batch(list(strings.code_points()), add_special_tokens=False),
                              CODE_POINT_BLOCK),
    }
    tokenizer.encode_special_tokens = True
    result["plain"] = hashes(tokenizer.encode_batch(texts, add_special_tokens=False), BLOCK)
    tokenizer.encode_special_tokens = False
    return result


def write(path, value):
    """One line for each key, and for each object in a list."""
    lines = []
    for key, part in value.items():
        inner = json.dumps(part)
        if isinstance(part, list) and isinstance(part[0], dict):
            inner = "[\n" + ",\n".join(json.dumps(one) for one in part) + "\n]"
        lines.append(f"{json.dumps(key)}: {inner}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    path = folder / "generator.json"
    ranges = json.loads(path.read_text())["ranges"] if path.exists() else assigned_ranges()
    generator = {"ranges": ranges, "lists": LISTS, "kinds": KINDS}
    write(path, generator)
    strings = Strings(generator)
    for name in TOKENIZERS:
        trained = train(name, strings)
        trained.save(str(folder / f"{name}.tokenizer.json"), pretty=False)
        reread = Tokenizer.from_file(str(folder / f"{name}.tokenizer.json"))
        write(folder / f"{name}.goldens.json", goldens(reread, strings))
        print(name, reread.get_vocab_size())


if __name__ == "__main__":
    main()
