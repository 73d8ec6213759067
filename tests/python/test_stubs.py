"""The stubs and docstrings document the functions' arguments."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import thalweg
from thalweg import _core, fla, ops

HERE = Path(thalweg.__file__).parent


def stubs(module):
    tree = ast.parse((HERE / f"{module}.pyi").read_text())
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def stub_parameters(node):
    """(name, kind, default, annotated) of each."""
    positional = node.args.args
    defaults = [None] * (len(positional) - len(node.args.defaults)) + node.args.defaults
    kinds = [*((x, "positional", d) for x, d in zip(positional, defaults, strict=True)),
             *((x, "keyword", d) for x, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)),
             *((x, "rest", None) for x in [node.args.kwarg] if x)]  # fmt: skip
    return [(x.arg, kind, ast.literal_eval(d) if d else inspect.Parameter.empty, x.annotation is not None)
            for x, kind, d in kinds]  # fmt: skip


def parameters(function):
    kinds = {inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional", inspect.Parameter.KEYWORD_ONLY: "keyword",
             inspect.Parameter.VAR_KEYWORD: "rest"}  # fmt: skip
    return [(x.name, kinds[x.kind], x.default, True) for x in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("module", [ops, fla], ids=lambda module: module.__name__)
def test_stubs_are_the_functions(module):
    written = stubs(module.__name__.split(".")[1])
    functions = {name: value for name, value in vars(module).items()
                 if inspect.isfunction(inspect.unwrap(value)) and inspect.unwrap(value).__module__ == module.__name__
                 and not name.startswith("_")}  # fmt: skip
    assert written.keys() == functions.keys()
    for name, function in functions.items():
        assert stub_parameters(written[name]) == parameters(function), name
        assert written[name].returns is not None, name


def test_every_operation_has_a_stub():
    assert set(_core.operations()) <= stubs("ops").keys()


@pytest.mark.parametrize("operation", _core.operations())
def test_docstrings_name_every_input(operation):
    """With its shape and dtype: every array that a function reads is documented, and so are errors."""
    text = getattr(ops, operation).__doc__
    inputs, _, options = _core.fields(operation)
    missing = [name for name in (*inputs, *options) if not re.search(rf"\b{name}\b", text)]
    assert not missing
    assert re.search(r"\[[^]]+\]", text), "no shape"
    assert "thalweg.Error" in text
