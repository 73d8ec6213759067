"""Several ranks: processes that run one model together, as launchers start them."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import free_port

import thalweg

ROOT = Path(__file__).resolve().parents[2]
STORY = ROOT / "models" / "story-q4_k.gguf"  # whose columns two ranks cannot cut: they can share prompts alone
LAUNCHERS = ("OMPI_", "PMIX_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_")

OPTIONS = 'dict(context=1024, sequences=2, exact=True, device="cpu")'
# What each rank runs; `use` is what rank 0 does, and prints.
PROGRAM = """
import sys
import thalweg
path, split = sys.argv[1:]
options = {options}
def run():
    ranks = thalweg.Ranks.from_environment(timeout=20)
    assert (ranks.count, ranks.local_rank, ranks.failure) == (2, ranks.rank, "")
    options.update(ranks=ranks, rank_split=split)
    if ranks.rank > 0:
        return thalweg.Model(path, **options).follow()
{use}
run()
"""
GENERATE = "    print(list(thalweg.Model(path, **options).generate({prompt}, max_tokens=8)))"
ENGINE = """
    engine = thalweg.Engine(path, **options)
    print([engine.complete({prompt}, max_tokens=8, ignore_end=True).tokens for _ in range(2)])
"""


@pytest.fixture(scope="module")
def cut_model(tmp_path_factory):
    """A model that two ranks can cut; `thalweg synth` makes it."""
    program = os.environ.get("THALWEG_BIN")
    if not program:
        pytest.skip("no THALWEG_BIN")
    path = tmp_path_factory.mktemp("ranks") / "model.gguf"
    subprocess.run([program, "synth", path, "--gigabytes", "0.02", "--type", "Q8_0", "-q"], check=True)
    return path


def start(path, split, use, prompt):
    """Two processes with the variables of torchrun."""
    program = PROGRAM.format(options=OPTIONS, use=use.format(prompt=prompt))
    port, processes = str(free_port()), []
    for rank in range(2):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
        environment |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": port, "LOCAL_WORLD_SIZE": "2",
                        "LOCAL_RANK": str(rank)}  # fmt: skip
        processes.append(subprocess.Popen([sys.executable, "-c", program, path, split], env=environment, text=True,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE))  # fmt: skip
    return processes


def run(*arguments):
    """What rank 0 printed; rank 1 prints nothing, and ends when rank 0 does."""
    results = [(process.communicate(timeout=120), process.returncode) for process in start(*arguments)]
    for (_, err), code in results:
        assert (code, err) == (0, ""), results
    assert results[1][0][0] == ""
    return eval(results[0][0][0])  # a list of tokens


def alone(path, prompt):
    options = eval(OPTIONS)
    return list(thalweg.Model(path, **options).generate(prompt, max_tokens=8))


SHORT = [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("split", ["tensor", "sequence"])
def test_text_is_that_of_one_process(cut_model, split):
    prompt = SHORT if split == "tensor" else [1 + i * 7 % 90 for i in range(600)]
    expected = alone(cut_model, prompt)
    assert expected
    assert run(cut_model, split, GENERATE, prompt) == expected


def test_the_model_in_the_box_shares_prompts():
    prompt = "Anna put the ball in the box. Where is the ball? " * 40
    expected = alone(STORY, prompt)
    assert expected
    assert run(STORY, "sequence", GENERATE, repr(prompt)) == expected


def test_an_engine_leads(cut_model):
    options = eval(OPTIONS)
    engine = thalweg.Engine(cut_model, **options)
    expected = engine.complete(SHORT, max_tokens=8, ignore_end=True).tokens
    assert len(expected) == 8
    assert run(cut_model, "tensor", ENGINE, SHORT) == [expected, expected]


def test_a_rank_that_is_lost(cut_model):
    use = """
    model = thalweg.Model(path, **options)
    sequence = model.start()
    model.prefill(sequence, {prompt})
    print("ready", flush=True)
    try:
        while True:
            model.prefill(sequence, {prompt})
            sequence.clear()
    except thalweg.Error as error:
        assert "rank 1" in str(error), error
    assert "rank 1" in ranks.failure, ranks.failure
    print("failed")
"""
    first, second = start(cut_model, "tensor", use, SHORT)
    assert first.stdout.readline() == "ready\n"
    second.send_signal(signal.SIGKILL)
    out, err = first.communicate(timeout=60)
    second.communicate()
    assert (out, err, first.returncode) == ("failed\n", "", 0)


def test_ranks_on_threads():
    """Whoever waits does so without the interpreter's lock."""
    port = free_port()
    result = {}

    def rank(number):
        ranks = thalweg.Ranks.connect(rank=number, count=2, port=port, timeout=20, on_this_host=2)
        model = thalweg.Model(STORY, ranks=ranks, rank_split="sequence", threads=1, device="cpu", exact=True)
        if number > 0:
            with pytest.raises(thalweg.Error, match="rank 0, which leads"):
                model.start()
            with pytest.raises(thalweg.Error, match="rank 0, which leads") as error:
                thalweg.Engine(STORY, ranks=ranks)
            assert error.value.argument == "ranks"
            model.follow()
        else:
            with pytest.raises(thalweg.Error):
                model.follow()
            result["text"] = list(model.generate("Where is the ball?", max_tokens=4))
        result[number] = (ranks.rank, ranks.count, ranks.local_rank, ranks.failure)

    threads = [threading.Thread(target=rank, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (result[0], result[1]) == ((0, 2, 0, ""), (1, 2, 1, ""))
    model = thalweg.Model(STORY, threads=1, device="cpu", exact=True)
    assert result["text"] == list(model.generate("Where is the ball?", max_tokens=4))


def test_one_rank_is_this_process(monkeypatch):
    for name in list(os.environ):
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)
    ranks = thalweg.Ranks.from_environment()
    assert (ranks.rank, ranks.count, ranks.local_rank, ranks.failure) == (0, 1, 0, "")
    model = thalweg.Model(STORY, ranks=ranks, device="cpu")
    assert list(model.generate("Where is the ball?", max_tokens=2))
    with pytest.raises(thalweg.Error) as error:
        model.follow()
    assert error.value.operation == "follow"


@pytest.mark.parametrize(("options", "argument"), [
    (dict(rank=0, count=0), "count"), (dict(rank=2, count=2), "rank"), (dict(rank=0, count=2, port=0), "port"),
    (dict(rank=0, count=2, timeout=0), "timeout_seconds"), (dict(rank=0, count=2, transport="udp"), "transport"),
    (dict(rank=0, count=2, local_rank=2), "local_rank"),
])  # fmt: skip
def test_errors_name_the_option(options, argument):
    with pytest.raises(thalweg.Error) as error:
        thalweg.Ranks.connect(**options)
    assert error.value.argument == argument


def test_errors_name_the_variable(monkeypatch):
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(thalweg.Error) as error:
        thalweg.Ranks.from_environment()
    assert error.value.argument == "RANK"


def test_a_rank_that_does_not_come():
    with pytest.raises(thalweg.Error):
        thalweg.Ranks.connect(rank=0, count=2, port=free_port(), timeout=0.2)


@pytest.mark.parametrize("kind", [thalweg.Model, thalweg.Engine])
def test_a_bad_split_is_named(kind):
    with pytest.raises(thalweg.Error) as error:
        kind(STORY, rank_split="layers")
    assert error.value.argument == "rank_split"
