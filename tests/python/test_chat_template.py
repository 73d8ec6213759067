"""The chat template of the model in the box writes what the published template of Qwen3-Next Instruct writes.

tests/text/goldens/chat.json has the hashes of 600 conversations; Jinja is set up as transformers sets it up.
"""

import json
import sys
from pathlib import Path

import pytest

sandbox = pytest.importorskip("jinja2.sandbox")

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import make_chat_goldens as goldens  # noqa: E402


def test_prompts_are_those_of_qwen3_next():
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string((ROOT / "tools/story_chat_template.jinja").read_text())
    stored = json.loads((ROOT / "tests/text/goldens/chat.json").read_text())
    (run,) = (run for run in stored["runs"] if run["template"] == "Qwen3-Next-80B-A3B-Instruct")
    assert len(stored["conversations"]) == len(run["hashes"]) == 600
    for talk, expected in zip(stored["conversations"], run["hashes"], strict=True):
        messages, tools = goldens.as_transformers_takes_it(talk)
        text = template.render(messages=messages, tools=tools, add_generation_prompt=True)
        assert goldens.fnv1a(text.encode()) == expected, text
