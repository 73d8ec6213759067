#!/usr/bin/env python3
"""Compiles the C and C++ examples of the documentation: check_examples.py C_COMPILER CXX_COMPILER [FILE...]

A block that includes something and defines functions stands for itself. Of any other, statements are the body of a
function, behind the functions that the block defines: what it uses and does not declare, tests/docs/given.h and given.c.h
do, and a page may add to that in a comment before the block: <!-- given: CODE -->. A block of another library is marked
<!-- not ours -->. Python's blocks are run by tests/python/test_docs.py.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HERE = pathlib.Path(__file__).resolve().parent
BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<language>cpp|c)\n(?P<code>.*?)^```$", re.M | re.S)
DEFINITION = re.compile(r"^(?:(?:[\w:]+[ *&]+)+\w+\([^;{]*\)|(?:struct|class|namespace) \w+) \{\n.*?^\}.*?\n", re.M | re.S)


def program(language: str, mark: str, code: str) -> str:
    """The text to compile: the block as it is, or as a function's body behind its own includes."""
    if DEFINITION.search(code) and code.startswith("#include"):
        return code
    functions = "".join(DEFINITION.findall(code))
    lines = DEFINITION.sub("", code).splitlines(keepends=True)
    head = "".join(line for line in lines if line.startswith(("#include", "using namespace")))
    body = "".join(line for line in lines if not line.startswith(("#include", "using namespace")))
    given = mark.removeprefix("given: ") if mark.startswith("given: ") else ""
    if language == "c":
        return f'#include "given.c.h"\n{functions}void example(void) {{\n{given}\n{body}}}\n'
    return f'#include "given.h"\n{head}{functions}void example() {{\n{given}\n{body}}}\n'


def compile_one(compilers: dict, page: pathlib.Path, line: int, language: str, mark: str, code: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / f"example.{'c' if language == 'c' else 'cc'}"
        source.write_text(program(language, mark, code))
        standard = "-std=c11" if language == "c" else "-std=c++20"
        command = [compilers[language], standard, "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-unused",
                   "-Wno-missing-field-initializers",
                   f"-I{ROOT / 'include'}", f"-I{HERE}", str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
    return f"{page.relative_to(ROOT)}:{line}: does not compile\n{done.stderr}" if done.returncode else ""


def main() -> int:
    compilers = {"c": sys.argv[1], "cpp": sys.argv[2]}
    named = [pathlib.Path(name).resolve() for name in sys.argv[3:]]
    pages = named or sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("models/*.md")])
    examples = []
    for page in pages:
        text = page.read_text()
        for block in BLOCK.finditer(text):
            if block["mark"] != "not ours":
                line = text.count("\n", 0, block.start("code"))
                examples.append((page, line, block["language"], block["mark"] or "", block["code"]))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        failures = [text for text in pool.map(lambda example: compile_one(compilers, *example), examples) if text]
    print("\n".join(failures))
    print(f"{len(examples) - len(failures)} examples compile, {len(failures)} do not")
    return 1 if failures or not examples else 0


if __name__ == "__main__":
    sys.exit(main())
