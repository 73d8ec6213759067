"""The page of `thalweg serve` in a headless Chromium, under the policy that the server sends.

Most tests need no server: the browser gets the page from the source tree, and scripted answers stand for the server's.
Those marked `served` talk to a real one: THALWEG_URL, or THALWEG_BIN (a `thalweg` program, started with `serve`).
CHROMIUM names the browser unless `chromium` or Playwright's own is there.
"""

import base64
import contextlib
import hashlib
import json
import os
import re
import shutil
import time
import urllib.request
from pathlib import Path

import pytest

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "src" / "server" / "page" / "index.html"
ORIGIN = "http://thalweg.test"
PHONE = {"width": 360, "height": 720}

# Answers to chat requests come from window.answer: {chunks, delay (ms per chunk), status, body, hold, cut}.
FAKE_SERVER = """
window.requests = [];
window.answer = {chunks: []};
const realFetch = window.fetch;
window.fetch = (address, options) => {
  if (!String(address).endsWith('chat/completions')) return realFetch(address, options);
  window.requests.push({body: JSON.parse(options.body), headers: options.headers});
  const {chunks, delay = 0, status = 200, body, hold, cut} = window.answer;
  if (status === 0) return Promise.reject(new TypeError('Failed to fetch'));
  if (status !== 200) return Promise.resolve(new Response(body, {status}));
  const encoder = new TextEncoder();
  const stream = new ReadableStream({async start(controller) {
    const stopped = () => options.signal.aborted;
    options.signal.addEventListener('abort', () => controller.error(new DOMException('', 'AbortError')));
    const send = (data) => controller.enqueue(encoder.encode('data: ' + data + '\\n\\n'));
    const delta = (delta, finish_reason = null) => send(JSON.stringify({choices: [{index: 0, delta, finish_reason}]}));
    delta({role: 'assistant', content: ''});
    for (const chunk of chunks) {
      if (delay) await new Promise((resolve) => setTimeout(resolve, delay));
      if (stopped()) return;
      delta(typeof chunk === 'string' ? {content: chunk} : chunk);
    }
    if (hold) return;
    if (cut) return controller.close();
    delta({}, 'stop');
    send(JSON.stringify({choices: [], usage: {prompt_tokens: 1234, completion_tokens: chunks.length,
      prompt_tokens_details: {cached_tokens: 1000}}}));
    send('[DONE]');
    controller.close();
  }});
  return Promise.resolve(new Response(stream));
};
"""


def policy(html):
    """The Content-Security-Policy of the page: the hashes of its one script and one style element."""

    def digest(tag):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    return (
        f"default-src 'none'; script-src {digest('script')}; style-src {digest('style')}; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        program = os.environ.get("CHROMIUM") or shutil.which("chromium")
        try:
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        except sync_api.Error as error:
            pytest.skip(f"no Chromium: {error}")
        yield browser
        browser.close()


class Chat:
    """The page in one browser context. `problems` collects what the browser reports: exceptions, refused loads."""

    def __init__(self, context, url=ORIGIN):
        self.page = context.new_page()
        self.url, self.problems = url, []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", lambda m: self.problems.append(m.text) if "Content Security" in m.text else None)
        self.page.goto(url)
        expect(self.page.locator("#server")).to_have_attribute("data-state", "ready")

    def script(self, *chunks, **options):
        self.page.evaluate("(answer) => { window.answer = answer; }", {"chunks": list(chunks), **options})

    def send(self, text):
        self.page.locator("#input").fill(text)
        self.page.keyboard.press("Enter")

    def ask(self, *chunks, question="Question", **options):
        """Sends a question that gets `chunks`; returns the answer when it is complete."""
        self.script(*chunks, **options)
        self.send(question)
        expect(self.page.locator("#send")).to_have_attribute("aria-label", "Send")
        return self.page.locator(".message.assistant").last

    def requests(self):
        return self.page.evaluate("() => window.requests")

    def reload(self):
        self.page.reload()
        self.page.locator("#list .open").first.click(force=True)


@pytest.fixture
def new_context(browser):
    with contextlib.ExitStack() as stack:

        def create(**options):
            context = browser.new_context(**options)
            stack.callback(context.close)
            html = PAGE.read_text()
            answers = {
                "/": {"body": html, "content_type": "text/html", "headers": {"Content-Security-Policy": policy(html)}},
                "/health": {"json": {"status": "ok"}},
                "/v1/models": {"json": {"object": "list", "data": [{"id": "story-q4_k"}]}},
            }
            missing = {"status": 404}
            context.route(
                ORIGIN + "/**", lambda route: route.fulfill(**answers.get(route.request.url[len(ORIGIN) :], missing))
            )
            context.add_init_script(FAKE_SERVER)
            return context

        yield create


@pytest.fixture
def chat(new_context):
    chat = Chat(new_context())
    yield chat
    assert chat.problems == []


def pieces(text, length):
    return [text[i : i + length] for i in range(0, len(text), length)]


# ---- The file ----------------------------------------------------------------------------------------------------


def test_file_is_self_contained():
    html = PAGE.read_text()
    assert len(html.encode()) < 80_000
    assert html.count("<script") == html.count("<style") == 1
    head = html.split("<script>")[0]
    assert not re.search(r"\son\w+=|\sstyle=", head)
    assert not re.search(r"\b(?:innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval|Function)\b", html)
    addresses = set(re.findall(r"https?://[\w.]+", html))
    assert addresses <= {"http://www.w3.org"}  # the name of SVG's namespace


def test_policy_is_enforced(chat):
    ran = chat.page.evaluate(
        """() => { const script = document.createElement('script'); script.textContent = 'window.ran = true';
                   document.body.append(script); return Boolean(window.ran); }"""
    )
    assert not ran
    assert any("Content Security" in problem for problem in chat.problems)
    chat.problems.clear()


# ---- What a model may write --------------------------------------------------------------------------------------

ATTACKS = {
    "image": '<img src=x onerror="window.hit=1">',
    "script": "<script>window.hit=1</script>",
    "svg": "text <svg onload=window.hit=1><a xlink:href='javascript:window.hit=1'>x</a></svg>",
    "javascript link": "[c](javascript:window.hit=1) [c](JaVaScRiPt:window.hit=1) [c](java\tscript:window.hit=1)",
    "encoded": "[c](&#106;avascript:window.hit=1) [c](%6aavascript:window.hit=1) [c](\x01javascript:window.hit=1)",
    "data link": "[d](data:text/html,<script>window.hit=1</script>) <data:text/html,x> [b](blob:http://thalweg.test/x)",
    "markdown image": "![alt](http://other.test/pixel.png) ![alt](data:image/svg+xml,<svg onload=window.hit=1>)",
    "link in link": "[a [b](https://example.org/b)](https://example.org/a \"' onclick='window.hit=1\")",
    "title": '[a](https://example.org/"onmouseover=window.hit=1)',
    "language": "```<img/src=x/onerror=window.hit=1>\n</code></pre><script>window.hit=1</script>\n```",
    "fences": "````md\n```html\n<img src=x onerror=window.hit=1>\n```\n````\n<b>after</b>",
    "table": "| <script>window.hit=1</script> | b |\n|-|-|\n| <img src=x onerror=window.hit=1> | [x](javascript:1) |",
    "heading": "# <iframe src=javascript:parent.hit=1></iframe>\n> <style>*{display:none}</style>\n\n- <base href=//x>",
    "autolink": "<javascript:window.hit=1> javascript:window.hit=1 https://example.org/<script>window.hit=1</script>",
    "prototype": "__proto__ constructor\n```__proto__\nx\n```",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("length", [1, 1000])
def test_answer_is_never_html(chat, attack, length):
    loads = []
    chat.page.on("request", lambda request: loads.append(request.url))
    answer = chat.ask(*pieces(attack, length), {"reasoning_content": attack}, question=attack)
    for link in answer.locator("a").all():
        assert re.match(r"https?://|mailto:", link.get_attribute("href"))
        assert "noopener" in link.get_attribute("rel")
        link.dispatch_event("mouseover")
    found = chat.page.evaluate(
        """() => [...document.querySelectorAll('#messages *, #list *')].filter((element) =>
             ['img', 'script', 'iframe', 'style', 'base', 'object', 'embed'].includes(element.localName) ||
             element.getAttributeNames().some((name) => name.startsWith('on') || name === 'style')).length"""
    )
    assert found == 0
    assert chat.page.evaluate("() => window.hit") is None
    assert loads == []
    assert chat.page.locator(".message.user .text").text_content() == attack.strip()
    chat.reload()
    assert chat.page.evaluate("() => window.hit") is None


def test_import_is_never_html(chat):
    attack = ATTACKS["image"]
    node = {"parent": -1, "role": "assistant", "content": attack, "model": attack, "error": attack, "finish": attack}
    good = {"id": "abc", "title": attack, "nodes": [node], "updated": 1, "pick": 7}
    bad = [
        {**good, "id": "__proto__"},
        {**good, "id": "b", "nodes": [{**node, "parent": 0}]},
        {**good, "id": "c", "nodes": [{**node, "role": "system"}]},
        {**good, "id": "d", "nodes": "x"},
        None,
    ]
    data = {"format": "thalweg-conversations", "version": 1, "conversations": [good, *bad]}
    upload(chat, data)
    expect(chat.page.locator("#notice")).to_contain_text("1 imported, 5 not readable")
    chat.page.locator("#list .open").click()
    expect(chat.page.locator(".assistant .markdown")).to_have_text(attack)
    assert chat.page.locator("#messages img, #list img").count() == 0
    assert chat.page.evaluate("() => window.hit") is None


def upload(chat, data):
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    file = {"name": "x.json", "mimeType": "application/json", "buffer": text}
    chat.page.locator("#import-file").set_input_files(file)


# ---- Markdown ----------------------------------------------------------------------------------------------------

MARKDOWN = [
    ("# One\n\ntext", "<h1>One</h1><p>text</p>"),
    ("####### seven", "<p>####### seven</p>"),
    (
        "**bold** *it* __b__ _i_ ***both*** ~~gone~~",
        "<p><strong>bold</strong> <em>it</em> <strong>b</strong> <em>i</em> "
        "<em><strong>both</strong></em> <del>gone</del></p>",
    ),
    ("**a *b* c** snake_case_name 2 * 3 * 4", "<p><strong>a <em>b</em> c</strong> snake_case_name 2 * 3 * 4</p>"),
    ("**open and *half*", "<p>**open and <em>half</em></p>"),
    ("`a*b*` ``x`y`` `open", "<p><code>a*b*</code> <code>x`y</code> `open</p>"),
    ("\\*plain\\* a\\b", "<p>*plain* a\\b</p>"),
    ("one\ntwo<br>three", "<p>one<br>two<br>three</p>"),
    ("---\n***\n- - -", "<hr><hr><hr>"),
    ("- a\n- b\n  - c\n  - d\n- e", "<ul><li>a</li><li>b<ul><li>c</li><li>d</li></ul></li><li>e</li></ul>"),
    ("3. a\n4. b\n   more", '<ol start="3"><li>a</li><li>b<br>more</li></ol>'),
    ("1. a\n  - b\n2. c", "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>"),
    ("- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"),
    ("- [ ] to do\n- [x] done", "<ul><li>\u2610 to do</li><li>\u2611 done</li></ul>"),
    ("text\n- a\n\nafter", "<p>text</p><ul><li>a</li></ul><p>after</p>"),
    ("> a\n> - b\n\nc", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote><p>c</p>"),
    ("In 1984.\n1984. was", "<p>In 1984.<br>1984. was</p>"),
    (
        "| a | b |\n|:-:|--:|\n| 1 | `x|y` |\n| 2 \\| 3 |",
        '<table><thead><tr><th class="center" scope="col">a</th><th class="right" scope="col">b</th></tr></thead>'
        '<tbody><tr><td class="center">1</td><td class="right"><code>x|y</code></td></tr>'
        '<tr><td class="center">2 | 3</td><td class="right"></td></tr></tbody></table>',
    ),
]


@pytest.mark.parametrize(("text", "html"), MARKDOWN)
def test_markdown(chat, text, html):
    answer = chat.ask(text)
    built = answer.locator(".markdown").inner_html()
    built = re.sub(r'<div class="table"[^>]*>(.*?)</div>', r"\1", built)
    assert built == html


def test_links(chat):
    answer = chat.ask(
        '[a **b**](https://example.org/x_(y) "t"), https://example.org/z. (https://example.org/w) <mailto:a@b.c> '
        "[none](/relative) ![pic](https://example.org/p.png)"
    )
    links = [(a.get_attribute("href"), a.inner_text()) for a in answer.locator("a").all()]
    assert links == [
        ("https://example.org/x_(y)", "a b"),
        ("https://example.org/z", "https://example.org/z"),
        ("https://example.org/w", "https://example.org/w"),
        ("mailto:a@b.c", "mailto:a@b.c"),
        ("https://example.org/p.png", "pic"),
    ]


def test_code_blocks(chat):
    code = 'if (a < b) {\n\n  print("<b>");\n}'
    answer = chat.ask(
        f"Before\n```cpp\n{code}\n```\n1. item\n   ~~~\n   in\n   ~~~\n````\n```\ninner\n```\n````\n```py\nopen"
    )
    assert [code.text_content() for code in answer.locator("pre code").all()] == [code, "in", "```\ninner\n```", "open"]
    assert answer.locator(".bar > span").all_inner_texts() == ["cpp", "text", "text", "py"]


DOCUMENT = """# Report *now*

First paragraph with `code`, **bold
over lines** and https://example.org/a_b.

| name | value |
|:-----|------:|
| x    | **1** |
| y    | 2     |

1. one

   ```py
   def f():

       return 1
   ```
2. two
   - nested
     - deeper

   still two
- other list
* third list

> quote
> ```
> in quote
> ```
lazy

text
---
~~~
``` not a fence
~~~
```` md
```js
x
```
````
`` not ` closed
| not | a table |
#hashtag
1) a
2) b

text
***bold*** goes on
```inline``` too

end **open
"""


@pytest.mark.parametrize("length", [1, 2, 3, 7, 31])
def test_growing_equals_whole(chat, length):
    """However the text is cut into chunks, the elements are those of the whole text."""
    answer = chat.ask(*pieces(DOCUMENT, length), delay=1 if length > 1 else 4)
    grown = answer.locator(".markdown").inner_html()
    chat.reload()
    assert chat.page.locator(".assistant .markdown").inner_html() == grown
    assert grown.count("<table>") == 1 and grown.count("<pre") == 4


@pytest.mark.parametrize(
    "text",
    [
        "*a " * 5000,
        "[" * 20000,
        "`" * 3 + " `a" * 8000,
        "> " * 3000,
        "- " * 3000 + "x",
        "**a" * 5000 + "**" * 5000,
        "|" * 5000 + "\n" + "|-" * 5000,
        "<" * 20000,
        "_" * 20000,
    ],
)
def test_hostile_markdown_is_fast(chat, text):
    start = time.monotonic()
    chat.ask(text)
    assert time.monotonic() - start < 5


def test_long_answer_is_built_once(chat):
    """150,000 characters in 500 chunks: only what more text can change is built again, and no frame is long."""
    paragraph = "Some *words* of a long answer with `code` and **more** of the same kind. "
    text = "\n\n".join([paragraph * 3, "- a\n- b", "```py\n" + "x = 1\n" * 30 + "```"] * 350)
    chat.script(*pieces(text, 300), delay=4)
    chat.page.evaluate(
        """() => {
          window.built = window.longest = 0;
          let last = performance.now();
          requestAnimationFrame(function tick(now) {
            window.longest = Math.max(window.longest, now - last);
            last = now;
            requestAnimationFrame(tick);
          });
          new MutationObserver((records) => {
            for (const record of records) if (record.target.matches?.('.markdown')) built += record.addedNodes.length;
          }).observe(document.getElementById('messages'), {childList: true, subtree: true});
        }"""
    )
    chat.send("Question")
    expect(chat.page.locator("#send")).to_have_attribute("aria-label", "Send", timeout=60_000)
    blocks = chat.page.locator(".markdown > *").count()
    built, longest = chat.page.evaluate("() => [window.built, window.longest]")
    assert blocks == 1050
    assert built < 2 * blocks + len(text) // 300
    assert longest < 1500, "milliseconds; a shared machine has its own pauses"


def test_long_code_block_is_one_node(chat):
    chat.script("```py\nfirst\n", *["x = 1\n" * 20] * 100, delay=4)
    chat.send("Question")
    code = chat.page.locator("pre code")
    expect(code).to_contain_text("first")
    code.evaluate("(code) => { window.first = code.firstChild; }")
    expect(chat.page.locator("#send")).to_have_attribute("aria-label", "Send")
    assert code.evaluate("(code) => code.childNodes.length === 1 && code.firstChild === window.first")
    assert code.text_content() == "first\n" + "x = 1\n" * 2000


# ---- Streaming ---------------------------------------------------------------------------------------------------


def test_request_and_figures(chat):
    answer = chat.ask("one ", "two", delay=40)
    (request,) = chat.requests()
    assert request["body"] == {
        "model": "story-q4_k",
        "messages": [{"role": "user", "content": "Question"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert "Authorization" not in request["headers"]
    stats = answer.locator(".stats").inner_text()
    assert re.search(r"tokens/s.*first token \d+ ms.*2 tokens.*prompt 1,234 \(1,000 cached\)", stats, re.DOTALL)
    chat.ask("three", question="Again")
    assert [m["content"] for m in chat.requests()[1]["body"]["messages"]] == ["Question", "one two", "Again"]


def test_reasoning_is_folded(chat):
    answer = chat.ask({"reasoning_content": "I think "}, {"reasoning_content": "**hard**"}, "Done", delay=60)
    details = answer.locator("details")
    assert details.get_attribute("open") is None
    assert re.fullmatch(r"Thought for \d+ ms", details.locator("summary").inner_text())
    details.locator("summary").click()
    assert details.locator("div").inner_text() == "I think **hard**"
    chat.ask("x", question="Again")
    assert "hard" not in json.dumps(chat.requests()[1]["body"])


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop(chat, how):
    chat.script("partial", hold=True)
    chat.send("Question")
    markdown = chat.page.locator(".assistant .markdown")
    expect(markdown).to_have_text("partial")
    expect(markdown).to_have_attribute("aria-live", "polite")
    if how == "button":
        chat.page.get_by_role("button", name="Stop").click()
    else:
        chat.page.keyboard.press("Escape")
    expect(chat.page.locator(".remark")).to_have_text("Stopped.")
    assert chat.page.locator(".error").count() == 0
    assert markdown.get_attribute("aria-live") is None
    chat.reload()
    expect(chat.page.locator(".assistant .markdown")).to_have_text("partial")


def test_answer_goes_on_while_another_conversation_is_shown(chat):
    chat.script(*"abcdefghij", delay=50)
    chat.send("First")
    chat.page.locator("#new").click()
    assert chat.page.locator(".message").count() == 0
    chat.ask("other", question="Second")
    chat.page.locator("#list .open", has_text="First").click()
    expect(chat.page.locator(".assistant .markdown")).to_have_text("abcdefghij")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"status": 0}, "cannot be reached"),
        ({"status": 400, "body": '{"error": {"message": "The prompt is too long"}}'}, "The prompt is too long"),
        ({"status": 503, "body": "busy"}, "busy (HTTP 503)"),
        ({"status": 200, "cut": True}, "closed before"),
    ],
)
def test_error_and_retry(chat, answer, message):
    failed = chat.ask(**answer)
    expect(failed.locator(".error")).to_contain_text(message)
    chat.script("fine")
    failed.get_by_role("button", name="Retry").click()
    expect(chat.page.locator(".assistant .markdown")).to_have_text("fine")
    assert chat.page.locator(".error, .branches").count() == 0
    assert [m["content"] for m in chat.requests()[1]["body"]["messages"]] == ["Question"]


def test_api_key(chat):
    failed = chat.ask(status=401, body='{"error": {"message": "Wrong key"}}')
    failed.get_by_role("button", name="Enter key").click()
    expect(chat.page.locator("input[name=key]")).to_be_focused()
    chat.page.keyboard.type("secret")
    chat.page.keyboard.press("Enter")
    chat.script("fine")
    failed.get_by_role("button", name="Retry").click()
    expect(chat.page.locator(".assistant .markdown")).to_have_text("fine")
    assert chat.requests()[1]["headers"]["Authorization"] == "Bearer secret"
    stored = "() => [JSON.stringify(localStorage), JSON.stringify(sessionStorage)].map((s) => s.includes('secret'))"
    assert chat.page.evaluate(stored) == [False, True]
    chat.page.locator("#settings").click()
    chat.page.locator("input[name=remember]").check()
    chat.page.get_by_role("button", name="Save").click()
    assert chat.page.evaluate(stored) == [True, False]


def test_settings(chat):
    values = {"temperature": "0", "top_p": "0.9", "top_k": "40", "max_tokens": "77", "seed": "5"}
    chat.page.locator("#settings").click()
    chat.page.locator("[name=system]").fill("Be brief.")
    for name, value in values.items():
        chat.page.locator(f"[name={name}]").fill(value)
    chat.page.locator("[name=thinking]").select_option("off")
    chat.page.get_by_role("button", name="Save").click()
    chat.page.reload()
    chat.ask("x")
    body = chat.requests()[0]["body"]
    assert {name: body[name] for name in values} == {name: float(value) for name, value in values.items()}
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}


# ---- Conversations -----------------------------------------------------------------------------------------------


def test_versions(chat):
    """An edit and a second answer keep what was there, and requests hold only what is shown."""
    chat.ask("A1", question="Q1")
    chat.ask("A2", question="Q2")
    chat.page.locator(".user .edit").first.click()
    editor = chat.page.locator(".editor textarea")
    expect(editor).to_be_focused()
    chat.script("B1")
    editor.fill("Q1 edited")
    chat.page.keyboard.press("Enter")
    expect(chat.page.locator(".assistant .markdown")).to_have_text("B1")
    assert [m["content"] for m in chat.requests()[2]["body"]["messages"]] == ["Q1 edited"]
    chat.script("B2")
    chat.page.get_by_role("button", name="Answer again").click()
    expect(chat.page.locator(".assistant .markdown")).to_have_text("B2")
    chat.reload()
    expect(chat.page.locator(".user .text")).to_have_text("Q1 edited")
    chat.page.locator(".assistant .previous").click()
    expect(chat.page.locator(".assistant .markdown")).to_have_text("B1")
    chat.page.locator(".user .previous").click()
    assert chat.page.locator(".text, .markdown").all_inner_texts() == ["Q1", "A1", "Q2", "A2"]
    expect(chat.page.locator(".user .branches").first).to_have_text("1/2")


def test_rename_and_delete(chat):
    chat.ask("x", question="My title")
    expect(chat.page.locator("#title")).to_have_text("My title")
    chat.page.get_by_role("button", name="Rename My title").click()
    chat.page.locator("#ask-input").fill("Other")
    chat.page.keyboard.press("Enter")
    chat.reload()
    expect(chat.page.locator("#title")).to_have_text("Other")
    chat.page.get_by_role("button", name="Delete Other").click()
    chat.page.get_by_role("button", name="Cancel").click()
    assert chat.page.locator("#list .open").count() == 1
    chat.page.get_by_role("button", name="Delete Other").click()
    chat.page.get_by_role("button", name="Delete", exact=True).click()
    expect(chat.page.locator("#list .open")).to_have_count(0)
    chat.page.reload()
    expect(chat.page.locator("#list .empty")).to_be_visible()


def test_export_and_import(chat):
    chat.ask("Answer", {"reasoning_content": "why"}, question="Kept")
    with chat.page.expect_download() as download:
        chat.page.locator("#export").click()
    data = json.loads(Path(download.value.path()).read_text())
    assert data["conversations"][0]["nodes"][0]["content"] == "Kept"
    chat.page.evaluate("() => localStorage.clear()")
    chat.page.reload()
    upload(chat, data)
    chat.page.locator("#list .open").click()
    expect(chat.page.locator(".assistant .markdown")).to_have_text("Answer")
    upload(chat, data)
    expect(chat.page.locator("#status")).to_have_text("0 imported, 1 already here")
    upload(chat, b"[1, 2")
    expect(chat.page.locator("#notice")).to_contain_text("no conversations")


def test_full_storage(chat):
    """A conversation that the browser cannot store stays usable, and is stored once there is room."""
    chat.ask("old", question="Old")
    chat.page.locator("#new").click()
    chat.page.evaluate(
        """() => { const set = Storage.prototype.setItem; window.full = true;
          Storage.prototype.setItem = function(key, value) {
            if (window.full) throw new DOMException('full', 'QuotaExceededError'); set.call(this, key, value); }; }"""
    )
    answer = chat.ask("works", question="New")
    expect(answer.locator(".markdown")).to_have_text("works")
    expect(chat.page.locator("#notice")).to_contain_text("no room")
    chat.page.evaluate("() => { window.full = false; }")
    chat.page.locator("#list li", has_text="Old").hover()
    chat.page.get_by_role("button", name="Delete Old").click()
    chat.page.get_by_role("button", name="Delete", exact=True).click()
    expect(chat.page.locator("#notice")).to_be_hidden()
    chat.reload()
    expect(chat.page.locator(".assistant .markdown")).to_have_text("works")


def test_forbidden_storage(new_context):
    context = new_context()
    context.add_init_script(
        """for (const name of ['localStorage', 'sessionStorage']) {
             Object.defineProperty(window, name, {get() { throw new DOMException('no', 'SecurityError'); }}); }"""
    )
    chat = Chat(context)
    expect(chat.page.locator("#notice")).to_be_visible()
    expect(chat.ask("works").locator(".markdown")).to_have_text("works")
    chat.page.locator("#theme").click()
    assert chat.problems == []


def test_two_tabs(new_context):
    context = new_context()
    first, second = Chat(context), Chat(context)
    first.ask("seen", question="Shared")
    second.page.locator("#list .open", has_text="Shared").click()
    expect(second.page.locator(".assistant .markdown")).to_have_text("seen")
    first.ask("more", question="Next")
    expect(second.page.locator(".assistant .markdown").last).to_have_text("more")
    assert first.problems == second.problems == []


# ---- Hands, eyes, screens ----------------------------------------------------------------------------------------


def test_keyboard(chat):
    chat.script("done")
    expect(chat.page.locator("#input")).to_be_focused()
    chat.page.keyboard.type("one")
    chat.page.keyboard.press("Shift+Enter")
    chat.page.keyboard.type("two")
    chat.page.keyboard.press("Enter")
    expect(chat.page.locator(".user .text")).to_have_text("one\ntwo", use_inner_text=True)
    expect(chat.page.locator(".assistant .markdown")).to_have_text("done")
    expect(chat.page.locator("#status")).to_have_text("Answer complete")
    seen = set()
    for _ in range(40):
        chat.page.keyboard.press("Tab")
        state = chat.page.evaluate(
            """() => { const e = document.activeElement, s = getComputedStyle(e);
              return [e.ariaLabel || e.textContent.trim(), s.outlineStyle !== 'none' || e.id === 'input',
                      e === document.body]; }"""
        )
        if not state[2]:
            assert state[0] and state[1], state
            seen.add(state[0])
    wanted = {
        "Export all conversations",
        "Settings",
        "Copy message",
        "Edit message",
        "Copy answer",
        "Answer again",
        "Message",
    }
    assert wanted <= seen, seen


def test_copy(new_context):
    chat = Chat(new_context(permissions=["clipboard-read", "clipboard-write"]))
    chat.page.evaluate(
        "() => { document.addEventListener('copy', () => { window.copied = String(document.activeElement.value); }); }"
    )
    chat.ask("Text **b**\n```py\nx = 1\n```")
    chat.page.get_by_role("button", name="Copy code").click()
    expect(chat.page.locator(".bar button")).to_have_text("Copied")
    # The origin is not secure, so the page has no clipboard but selects and copies.
    assert chat.page.evaluate("() => window.copied") == "x = 1"
    chat.page.get_by_role("button", name="Copy answer").click()
    assert chat.page.evaluate("() => window.copied") == "Text **b**\n```py\nx = 1\n```"
    assert chat.problems == []


def test_scrolls_only_at_the_end(chat):
    chat.script(*["Line of text.\n\n"] * 150, delay=15)
    chat.send("Question")
    top = "() => [scroller.scrollTop, scroller.scrollHeight - scroller.clientHeight]"
    expect(chat.page.locator(".markdown > p").nth(60)).to_be_attached()
    at, end = chat.page.evaluate(top)
    assert end > 0 and abs(end - at) < 2
    chat.page.locator("#scroller").hover()
    chat.page.mouse.wheel(0, -400)
    expect(chat.page.locator("#latest")).to_be_visible()
    before = chat.page.evaluate(top)
    expect(chat.page.locator(".markdown > p").nth(110)).to_be_attached()
    after = chat.page.evaluate(top)
    assert after[0] <= before[0] and after[1] > before[1]
    chat.page.locator("#latest").click()
    expect(chat.page.locator("#send")).to_have_attribute("aria-label", "Send")
    at, end = chat.page.evaluate(top)
    assert abs(end - at) < 2


def test_phone(new_context):
    chat = Chat(new_context(viewport=PHONE, has_touch=True, is_mobile=True))
    chat.ask(DOCUMENT, "\n\n" + "word" * 100 + "\n\n|" + "wide cell|" * 12 + "\n|" + "-|" * 12, question="x" * 300)
    width = "() => Math.max(document.documentElement.scrollWidth, document.getElementById('scroller').scrollWidth)"
    assert chat.page.evaluate(width) <= PHONE["width"]
    expect(chat.page.locator("#side")).to_be_hidden()
    chat.page.locator("#menu").click()
    chat.page.locator("#settings").click()
    box = chat.page.locator("#settings-dialog").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"]
    chat.page.keyboard.press("Escape")
    chat.page.locator("#new").click()
    expect(chat.page.locator("#side")).to_be_hidden()
    assert chat.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_theme(new_context, scheme):
    chat = Chat(new_context(color_scheme=scheme))
    brightness = (
        "() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + Number(b), 0)"
    )
    dark = [chat.page.evaluate(brightness) < 300]
    for _ in range(3):
        chat.page.locator("#theme").click()
        dark.append(chat.page.evaluate(brightness) < 300)
    system = scheme == "dark"
    assert dark == [system, False, True, system]
    chat.page.locator("#theme").click()
    chat.page.reload()
    assert chat.page.evaluate(brightness) >= 300


# ---- A real server -----------------------------------------------------------------------------------------------


def test_served_page(served):
    with urllib.request.urlopen(served + "/", timeout=30) as response:
        html, sent = response.read().decode(), response.headers["Content-Security-Policy"]
    assert html == PAGE.read_text()
    for directive in policy(html).split("; "):
        if not directive.startswith(("script-src", "style-src")):
            assert directive in sent
    assert "'unsafe-" not in sent


def test_served_chat(served, browser):
    with contextlib.closing(browser.new_context()) as context:
        chat = Chat(context, served)
        chat.page.locator("#settings").click()
        chat.page.locator("[name=max_tokens]").fill("24")
        chat.page.locator("[name=temperature]").fill("0")
        chat.page.get_by_role("button", name="Save").click()
        chat.send("Anna put the red ball in the kitchen. Where is the red ball?")
        stats = chat.page.locator(".stats")
        expect(stats).to_contain_text("first token", timeout=120_000)
        expect(stats).to_contain_text("prompt")
        assert chat.page.locator(".error").count() == 0
        assert chat.page.locator(".assistant .markdown").inner_text() == "The red ball is in the kitchen."
        assert chat.problems == []
