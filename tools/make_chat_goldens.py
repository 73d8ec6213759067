#!/usr/bin/env python3
"""Makes tests/text/goldens/chat.json: conversations, and FNV-1a hashes of what transformers writes for them.

    pip install transformers jinja2
    tools/make_chat_goldens.py tests/text/goldens/chat.json NAME=chat_template.jinja ...

NAME is one of VARIANTS below; the templates are the published ones, of the repositories that the names say (for
Qwen3-Next from tokenizer_config.json, of 2025-09-09 where the name says so). The test knows what each of them is, and
compares chat_prompt with every hash; conversations that a template refuses are stored as null.
"""

import hashlib
import json
import random
import sys

CONVERSATIONS = 600
# The options that each template is rendered with.
VARIANTS = {
    "Qwen3-Next-80B-A3B-Instruct": [{}],
    "Qwen3-Next-80B-A3B-Instruct-2025-09-09": [{}],
    "Qwen3-Next-80B-A3B-Thinking": [{}],
    "Qwen3.5-9B": [{}, {"enable_thinking": False}],
    "Qwen3.5-0.8B": [{}, {"enable_thinking": True}],
    "Qwen3.6-35B-A3B": [{}, {"enable_thinking": False}, {"preserve_thinking": True}],
    "llama.cpp-Qwen3.5-4B": [{}],
    "unsloth-Qwen3.5": [{}],
    "unsloth-Qwen3.6": [{"preserve_thinking": True}],
}

WORDS = (
    "the river a lighthouse 42 3.14 def main(): {} [] <b>x</b> naïve Ünïcode 你好 世界 こんにちは مرحبا שלום 🙂 👩‍👩‍👧 é "
    "<think> </think> <tool_call> </tool_call> <tool_response> </tool_response> <|im_start|> <|im_end|> <|endoftext|> "
    "<function=f> </function> <parameter=x> </parameter> \\n \" ' & \u2028 \u007f \u0001 \u200b null True"
).split(" ")
BLANKS = ["", "", "", " ", "\n", "\n\n", "\t", " \n ", "\u3000", "\x1c", "\x85", "\u00a0", "\r\n", "\u200b", "\u2029"]
NUMBERS = (
    "0 -0 1 -17 9007199254740993 18446744073709551615 -9223372036854775808 18446744073709551616 "
    "123456789012345678901234567890 0.0 -0.0 1.0 0.1 1e5 1E5 100.0e-2 1e15 1e16 1e17 123456789.123456789 1e-4 1e-5 "
    "0.0001 0.00001 1.5e300 5e-324 2.2250738585072014e-308 1.7976931348623157e308 9999999999999998.0 1e22 1e23 "
    "0.30000000000000004 3.0e0 -2.5E-7 4.35 1234567890123456.7 12345678901234567.8"
).split(" ")


def text(rng, most=9):
    body = "".join(rng.choice(WORDS) + rng.choice([" ", " ", "\n", ""]) for _ in range(rng.randrange(most)))
    return rng.choice(BLANKS) + rng.choice(BLANKS) + body + rng.choice(BLANKS) + rng.choice(BLANKS)


def spell_string(rng, value):
    """A JSON string, spelled in one of the ways that a writer may choose."""
    spelled = json.dumps(value, ensure_ascii=rng.random() < 0.3)
    return spelled.replace("/", "\\/") if rng.random() < 0.2 else spelled


def spell_json(rng, depth=3):
    kind = rng.randrange(9 if depth > 0 else 5)
    blank = rng.choice(["", " ", "\n  "])
    if kind == 0:
        return rng.choice(["null", "true", "false"])
    if kind in (1, 2):
        return rng.choice(NUMBERS)
    if kind in (3, 4):
        return spell_string(rng, text(rng, 5))
    if kind in (5, 6):
        return "[" + blank + ("," + blank).join(spell_json(rng, depth - 1) for _ in range(rng.randrange(4))) + "]"
    return spell_object(rng, depth - 1)


def spell_object(rng, depth=3):
    keys = ["a", "path", "zeta", "alpha", "", "with space", "ключ", 'quote"', "new\nline", "nested", "a"]
    blank = rng.choice(["", " ", "\n"])
    members = [
        f"{spell_string(rng, rng.choice(keys))}{blank}:{blank}{spell_json(rng, depth)}" for _ in range(rng.randrange(5))
    ]
    return "{" + blank + f",{blank}".join(members) + blank + "}"


def spell_tools(rng):
    tools = []
    for i in range(rng.randrange(1, 4)):
        function = {
            "name": f"tool_{i}",
            "description": text(rng, 6),
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "string"}, "path": {"type": rng.choice(["integer", "array"])}},
                "required": ["path"],
            },
        }
        spelled = json.dumps({"type": "function", "function": function}, ensure_ascii=rng.random() < 0.5)
        tools.append(spelled if rng.random() < 0.7 else spelled[:-1] + f', "extra": {spell_json(rng)}}}')
    return "[" + rng.choice([",", ", ", ",\n "]).join(tools) + "]"


def answer(rng, may_call):
    message = {"role": "assistant", "content": text(rng) if rng.random() < 0.8 else ""}
    if rng.random() < 0.4:
        message["reasoning"] = text(rng, 8) or "hm"
    if rng.random() < 0.25:
        message["content"] = f"<think>\n{text(rng, 5)}\n</think>\n\n" + message["content"]
    if may_call and rng.random() < 0.7:
        message["tool_calls"] = [[f"tool_{rng.randrange(3)}", spell_object(rng)] for _ in range(rng.randrange(1, 4))]
    return message


def conversation(rng):
    messages = [{"role": "system", "content": text(rng)} for _ in range(rng.choice([0, 0, 1, 1, 1, 1, 1, 1, 2]))]
    with_tools = rng.random() < 0.6
    for turn in range(rng.randrange(1, 4)):
        question = text(rng)
        if rng.random() < 0.08:
            question = f"{rng.choice(BLANKS)}<tool_response>{question}</tool_response>{rng.choice(BLANKS)}"
        messages.append({"role": "user", "content": question})
        if turn > 0 and rng.random() < 0.04:
            messages.append({"role": "system", "content": text(rng)})
        while rng.random() < 0.6:
            message = answer(rng, with_tools)
            messages.append(message)
            for _ in message.get("tool_calls", []):
                messages.append({"role": "tool", "content": text(rng)})
    while messages[-1]["role"] not in ("user", "tool"):
        messages.pop()
    return {"messages": messages, "tools": spell_tools(rng) if with_tools else ""}


def as_transformers_takes_it(talk):
    messages = []
    for given in talk["messages"]:
        message = {"role": given["role"], "content": given["content"]}
        if given.get("reasoning"):
            message["reasoning_content"] = given["reasoning"]
        if "tool_calls" in given:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": name, "arguments": json.loads(arguments)}}
                for name, arguments in given["tool_calls"]
            ]
        messages.append(message)
    return messages, json.loads(talk["tools"]) if talk["tools"] else None


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{value:016x}"


def drops_text(template, talk):
    """Unsloth's templates leave out system messages that follow others; chat_prompt refuses them."""
    roles = [message["role"] for message in talk["messages"]]
    merged = next((i for i, role in enumerate(roles) if role != "system"), len(roles))
    return "merged_system" in template and (merged > 2 or "system" in roles[merged:])


def render(template, talk, options):
    from transformers.utils.chat_template_utils import render_jinja_template

    if drops_text(template, talk):
        return None
    messages, tools = as_transformers_takes_it(talk)
    try:
        rendered, _ = render_jinja_template(
            [messages], tools=tools, chat_template=template, add_generation_prompt=True, **options
        )
    except Exception as error:  # raise_exception() of the template
        if type(error).__name__ != "TemplateError":
            raise
        return None
    return fnv1a(rendered[0].encode()), rendered[0]


def main():
    templates = {}
    for argument in sys.argv[2:]:
        name, path = argument.split("=", 1)
        with open(path, encoding="utf-8", newline="") as file:
            templates[name] = file.read()
    if set(templates) != set(VARIANTS):
        sys.exit(f"give the templates of {', '.join(VARIANTS)}")
    rng = random.Random(20261124)
    talks = [conversation(rng) for _ in range(CONVERSATIONS)]
    runs = []
    for name, all_options in VARIANTS.items():
        for options in all_options:
            rendered = [render(templates[name], talk, options) for talk in talks]
            runs.append(
                {
                    "template": name,
                    "sha256": hashlib.sha256(templates[name].encode()).hexdigest(),
                    "options": options,
                    "hashes": [one and one[0] for one in rendered],
                    # Whole texts of a few, for whoever looks for a difference.
                    "texts": [one and one[1] for one in rendered[:8]],
                }
            )
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"conversations": talks, "runs": runs}, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
