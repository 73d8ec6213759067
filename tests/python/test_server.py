"""`thalweg serve` as its users see it: through the official packages `openai` and `anthropic`.

The server is THALWEG_URL, or THALWEG_BIN (a `thalweg` program) with the shipped model, which answers questions about
stories. It has not been trained to call tools or to write JSON: a grammar makes it.
"""

import http.client
import json
import time
import urllib.parse
import urllib.request

import pytest
from conftest import running_server

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

QUESTION = "Anna put the ball in the box. Where is the ball?"
ANSWER = "The ball is in the box."
USER = [{"role": "user", "content": QUESTION}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"name": "weather", "description": "The weather of a city.", "parameters": SCHEMA}


@pytest.fixture(scope="module")
def gpt(served):
    return openai.OpenAI(base_url=served + "/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def claude(served):
    return anthropic.Anthropic(base_url=served, api_key="none", max_retries=0, timeout=120)


def metrics(served):
    with urllib.request.urlopen(served + "/metrics", timeout=30) as response:
        lines = [line.split() for line in response.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def wait_until_idle(served):
    for _ in range(200):
        if metrics(served)["thalweg_requests_running"] == 0:
            return
        time.sleep(0.05)
    pytest.fail("a request still runs")


def is_weather(arguments):
    return arguments["city"] in ("Paris", "Rome") and isinstance(arguments["days"], int) and len(arguments) == 2


# ---- OpenAI's completions ----------------------------------------------------------------------------------------


def test_models(gpt):
    model = gpt.models.list().data[0]
    assert gpt.models.retrieve(model.id) == model


def test_completion(gpt):
    settings = {"model": "any", "prompt": QUESTION, "temperature": 0, "max_tokens": 20}
    answer = gpt.completions.create(**settings)
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    streamed = "".join(chunk.choices[0].text for chunk in gpt.completions.create(**settings, stream=True))
    assert streamed == answer.choices[0].text


def test_chat(gpt):
    settings = {"model": "any", "messages": USER, "temperature": 0, "max_tokens": 24, "reasoning_effort": "none"}
    answer = gpt.chat.completions.create(**settings)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == ANSWER
    chunks = list(gpt.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True}))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed == answer.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == answer.choices[0].finish_reason


def test_chat_gives_several_answers_and_logprobs(gpt):
    answer = gpt.chat.completions.create(
        model="any", messages=USER, n=3, seed=5, temperature=1.5, max_tokens=6, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in choice.logprobs.content)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_chat_calls_a_tool(gpt, choice):
    settings = {
        "model": "any",
        "messages": USER,
        "tools": [{"type": "function", "function": {**TOOL, "strict": True}}],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "reasoning_effort": "none",
        "temperature": 0,
    }
    answer = gpt.chat.completions.create(**settings).choices[0]
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message.tool_calls
    assert call.function.name == "weather"
    assert is_weather(json.loads(call.function.arguments))

    with gpt.chat.completions.stream(**settings) as stream:
        for _ in stream:
            pass
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.name == call.function.name
    assert streamed.function.arguments == call.function.arguments

    history = [*USER, answer.message, {"role": "tool", "tool_call_id": call.id, "content": "sun"}]
    after = gpt.chat.completions.create(**{**settings, "messages": history, "tool_choice": "none"}, max_tokens=8)
    assert after.choices[0].message.tool_calls is None


def test_chat_writes_json(gpt):
    answer = gpt.chat.completions.create(
        model="any",
        messages=USER,
        reasoning_effort="none",
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}},
    )
    assert is_weather(json.loads(answer.choices[0].message.content))


def test_chat_writes_json_or_calls(gpt):
    settings = {
        "model": "any",
        "messages": USER,
        "tools": [{"type": "function", "function": TOOL}],
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}},
    }
    message = gpt.chat.completions.create(**settings).choices[0].message
    if message.tool_calls:
        assert message.content is None
        assert all(is_weather(json.loads(call.function.arguments)) for call in message.tool_calls)
    else:
        assert is_weather(json.loads(message.content))
    called = gpt.chat.completions.create(**settings, tool_choice="required").choices[0].message
    assert called.tool_calls
    assert gpt.chat.completions.create(**settings, tool_choice="none").choices[0].message.tool_calls is None


def test_errors(gpt):
    with pytest.raises(openai.BadRequestError) as refused:
        gpt.chat.completions.create(model="any", messages=USER, temperature=7)
    assert refused.value.param == "temperature"
    assert refused.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="image"):
        part = {"type": "image_url", "image_url": {"url": "data:,"}}
        gpt.chat.completions.create(model="any", messages=[{"role": "user", "content": [part]}])
    with pytest.raises(openai.NotFoundError):
        gpt.models.retrieve("another")
    with pytest.raises(openai.NotFoundError):
        gpt.embeddings.create(model="any", input="x")
    with pytest.raises(openai.APIStatusError) as long:
        gpt.completions.create(model="any", prompt="x" * (17 << 20))
    assert long.value.status_code == 413


def test_timeouts_and_disconnects_end_requests(gpt, served):
    # A text that may end would end in time now and then.
    numbers = {"type": "array", "items": {"type": "integer"}, "minItems": 2000}
    schema = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": numbers}}
    endless = {"model": "any", "messages": USER, "max_tokens": 4000, "n": 8, "response_format": schema}
    with pytest.raises(openai.APITimeoutError):
        gpt.with_options(timeout=0.3).chat.completions.create(**endless)
    wait_until_idle(served)
    stream = gpt.chat.completions.create(**endless, stream=True)
    next(stream)
    stream.close()
    wait_until_idle(served)


# ---- OpenAI's responses ------------------------------------------------------------------------------------------

SILENT = {"reasoning": {"effort": "none"}}


def test_response(gpt):
    settings = {"model": "any", "input": QUESTION, "instructions": "Be short.", "temperature": 0, **SILENT}
    whole = gpt.responses.create(**settings, max_output_tokens=16)
    assert whole.status == "completed"
    assert whole.output_text == ANSWER
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    events = list(gpt.responses.create(**settings, max_output_tokens=16, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text


def test_response_calls_a_tool(gpt):
    settings = {"model": "any", "tools": [{"type": "function", **TOOL, "strict": True}], "temperature": 0, **SILENT}
    once = {"tool_choice": "required", "parallel_tool_calls": False}
    with gpt.responses.stream(**settings, **once, input=USER) as stream:
        for _ in stream:
            pass
        response = stream.get_final_response()
    (call,) = response.output
    assert call.type == "function_call"
    assert is_weather(json.loads(call.arguments))
    history = [*USER, call.model_dump(exclude_none=True)]
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "sun"})
    after = gpt.responses.create(**settings, tool_choice="none", input=history, max_output_tokens=8)
    assert all(item.type == "message" for item in after.output)


def test_response_writes_json(gpt):
    text = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}
    answer = gpt.responses.create(model="any", input=QUESTION, text=text, temperature=0, **SILENT)
    assert is_weather(json.loads(answer.output_text))


def test_response_gives_logprobs(gpt):
    settings = {"model": "any", "input": QUESTION, "temperature": 0, "top_logprobs": 3}
    settings["include"] = ["message.output_text.logprobs"]
    (part,) = gpt.responses.create(**settings).output[0].content
    assert "".join(token.token for token in part.logprobs) == part.text
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in part.logprobs)
    assert bytes(byte for token in part.logprobs for byte in token.bytes).decode() == part.text
    streamed = []
    for event in gpt.responses.create(**settings, stream=True):
        if event.type == "response.output_text.delta":
            streamed += [(token.token, token.logprob, len(token.top_logprobs)) for token in event.logprobs]
    assert streamed == [(token.token, token.logprob, 3) for token in part.logprobs]


def test_response_keeps_nothing(gpt):
    with pytest.raises(openai.BadRequestError) as refused:
        gpt.responses.create(model="any", input="x", previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"


# ---- Anthropic's messages ----------------------------------------------------------------------------------------

CALM = {"thinking": {"type": "disabled"}, "extra_body": {"temperature": 0}}


def test_message(claude):
    settings = {"model": "any", "max_tokens": 16, "messages": USER, "system": "Be short.", **CALM}
    message = claude.messages.create(**settings)
    with claude.messages.stream(**settings) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert text == "".join(block.text for block in message.content) == ANSWER
    assert streamed.stop_reason == message.stop_reason
    assert streamed.usage.output_tokens == message.usage.output_tokens
    count = claude.messages.count_tokens(
        model="any", messages=USER, system="Be short.", thinking=CALM["thinking"]
    ).input_tokens
    assert count == streamed.usage.input_tokens + streamed.usage.cache_read_input_tokens


def test_message_calls_a_tool(claude):
    tool = {"name": "weather", "description": "The weather of a city.", "input_schema": SCHEMA}
    settings = {"model": "any", "max_tokens": 200, "tools": [tool], **CALM}
    once = {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    with claude.messages.stream(**settings, **once, messages=USER) as stream:
        for _ in stream:
            pass
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    (call,) = message.content
    assert call.name == "weather"
    assert is_weather(call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sun"}
    history = [*USER, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    after = claude.messages.create(**settings, messages=history, tool_choice={"type": "none"})
    assert after.stop_reason in ("end_turn", "max_tokens")


def test_message_stops_at_a_sequence(claude):
    settings = {"model": "any", "max_tokens": 24, "messages": USER, **CALM}
    text = claude.messages.create(**settings).content[0].text
    stopped = claude.messages.create(**settings, stop_sequences=["never", text[4:8]])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", text[4:8])


def test_message_errors(claude):
    with pytest.raises(anthropic.BadRequestError) as refused:
        claude.messages.create(model="any", max_tokens=8, messages=[{"role": "tool", "content": "x"}])
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    assert claude.models.list().data[0].type == "model"
    with pytest.raises(anthropic.NotFoundError):
        claude.models.retrieve("another")


def test_keys():
    with running_server("--api-key", "secret") as url:
        assert openai.OpenAI(base_url=url + "/v1", api_key="secret").models.list().data
        assert anthropic.Anthropic(base_url=url, api_key="secret").models.list().data
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=url + "/v1", api_key="wrong").models.list()
        with pytest.raises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=url, api_key="wrong").models.list()


def test_connections_close_when_the_client_wants_it(served):
    address = urllib.parse.urlsplit(served)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=10)
    connection.request("GET", "/health", headers={"Connection": "close"})
    response = connection.getresponse()
    response.read()
    assert response.getheader("Connection") == "close"
    assert connection.sock is None
