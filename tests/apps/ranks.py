#!/usr/bin/env python3
"""Several ranks of the command line: tests/apps/ranks.py THALWEG [cpu|cuda]

Text of two ranks over TCP and under mpirun, where that is installed; sessions; bench; a rank that is killed, which must
end the other, and one that hangs, which must turn /health of `serve` to 503. More ranks than two: test_model. With cuda
each rank has a GPU of its own.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

BINARY = sys.argv[1]
DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cpu"
LAUNCHERS = ("OMPI_", "PMIX_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_")


def clean_environment():
    return {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_tcp(count, arguments):
    port = str(free_port())
    processes = []
    for rank in range(count):
        environment = clean_environment() | {"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_PORT": port,
                                             "LOCAL_WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}  # fmt: skip
        processes.append(subprocess.Popen([BINARY, *arguments], env=environment, stdin=subprocess.DEVNULL,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))  # fmt: skip
    return processes


def run_tcp(count, arguments):
    results = [(process.communicate(timeout=120), process.returncode) for process in start_tcp(count, arguments)]
    for rank, ((out, err), code) in enumerate(results):
        assert code == 0, f"rank {rank} of {count}: {code}, {err}"
        assert rank == 0 or (out, err) == ("", ""), f"rank {rank} prints: {out}{err}"
    return results[0][0][0]


def run_mpi(count, arguments):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(count), BINARY, *arguments]
    # All ranks are here: no ssh is needed, which mpirun looks for.
    environment = clean_environment() | {"OMPI_MCA_plm_rsh_agent": "true"}
    run = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                         timeout=120)  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout


def check_text(model, folder):
    def generate(tokens, count):
        return ["generate", "-m", model, "--token-ids", tokens, "-n", count, "--exact", "--device", DEVICE, "-q"]

    prompt = "1,2,3,4,5,6,7,8"
    alone = subprocess.run([BINARY, *generate(prompt, "12")], env=clean_environment(), capture_output=True, text=True,
                           check=True)  # fmt: skip
    launchers = [("tcp", run_tcp)]
    if shutil.which("mpirun"):
        launchers.append(("mpirun", run_mpi))
    else:
        print("mpirun is not installed: left out")
    for name, run in launchers:
        text = run(2, generate(prompt, "12"))
        assert text == alone.stdout, f"{name}: {text} instead of {alone.stdout}"
        session = ["--session", os.path.join(folder, name)]
        first = run(2, [*generate(prompt, "6"), *session])
        second = run(2, [*generate("9", "6"), *session])
        together = run(2, generate(prompt + "," + first.strip() + ",9", "6"))
        assert second == together, f"{name}: the session went on with {second} instead of {together}"
    assert "model.gguf" in run_tcp(2, ["bench", "--op", "model", "-m", model, "--device", DEVICE, "-q"])


def check_shared_prompt(model):
    """A prompt that two ranks share gives the text of one."""
    prompt = ",".join(str(1 + i * 7 % 90) for i in range(600))
    command = ["generate", "-m", model, "--token-ids", prompt, "-n", "12", "--exact", "--device", DEVICE, "-q"]
    alone = subprocess.run([BINARY, *command], env=clean_environment(), capture_output=True, text=True,
                           check=True)  # fmt: skip
    for run in [run_tcp, *([run_mpi] if shutil.which("mpirun") else [])]:
        text = run(2, [*command, "--rank-split", "sequence"])
        assert text == alone.stdout, f"{run.__name__}: {text} instead of {alone.stdout}"
    text = subprocess.run([BINARY, "inspect", "-m", model, "--ranks", "2", "--rank-split", "sequence", "--json"],
                          capture_output=True, text=True, check=True, env=clean_environment()).stdout  # fmt: skip
    report = json.loads(text)
    assert [rank["state_bytes"] for rank in report["ranks"]] == [report["state_bytes"]] * 2


def check_inspect(model):
    text = subprocess.run([BINARY, "inspect", "-m", model, "--ranks", "2", "--json"], capture_output=True, text=True,
                          check=True, env=clean_environment()).stdout  # fmt: skip
    report = json.loads(text)
    assert len(report["ranks"]) == 2
    assert sum(rank["state_bytes"] for rank in report["ranks"]) == report["state_bytes"]


# Waits until a process has computed for a second: it is past its connection then, however busy the machine is.
def wait_for_work(process):
    stat = f"/proc/{process.pid}/stat"
    if DEVICE != "cpu" or not os.path.exists(stat):
        time.sleep(3 if DEVICE == "cpu" else 15)
        return
    for _ in range(1200):
        with open(stat) as file:
            ticks = sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
        if ticks >= os.sysconf("SC_CLK_TCK"):
            return
        time.sleep(0.05)
    raise AssertionError("a rank does not begin its work")


def check_killed(model):
    # Ten seconds of steps, which no end token cuts short.
    work = [] if DEVICE == "cpu" else ["--prefill", ",".join(["32768"] * 200)]
    processes = start_tcp(2, ["bench", "--op", "model", "-m", model, "--device", DEVICE, "-q", *work])
    wait_for_work(processes[1])
    processes[1].send_signal(signal.SIGKILL)
    begin = time.monotonic()
    _, err = processes[0].communicate(timeout=20)
    assert processes[0].returncode == 2, processes[0].returncode
    lines = err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("thalweg: ") and "rank 1" in lines[0], err
    assert time.monotonic() - begin < 15
    processes[1].wait()


def health(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def check_server(model):
    port = free_port()
    processes = start_tcp(2, ["serve", "-m", model, "--port", str(port), "-q", "--log", "off", "--comm-timeout", "2",
                             "--device", DEVICE])  # fmt: skip
    try:
        for _ in range(600):
            try:
                status = health(port)
                break
            except OSError:
                time.sleep(0.05)
        assert status[0] == 200, status
        body = json.dumps({"prompt": "Where is the ball?", "max_tokens": 5, "temperature": 0}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", data=body)
        answers = [json.load(urllib.request.urlopen(request, timeout=60)) for _ in range(2)]
        assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"]
        processes[1].send_signal(signal.SIGSTOP)  # hangs, with its connection open
        for _ in range(200):
            status = health(port)
            if status[0] == 503:
                break
            time.sleep(0.05)
        assert status[0] == 503 and "rank 1" in status[1], status
        try:
            urllib.request.urlopen(request, timeout=60)
            raise AssertionError("a request was answered")
        except urllib.error.HTTPError as error:
            assert error.code == 500, error.code
    finally:
        processes[1].send_signal(signal.SIGCONT)
        processes[0].send_signal(signal.SIGTERM)
        for process in processes:
            process.communicate(timeout=30)


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "model.gguf")
        subprocess.run([BINARY, "synth", model, "--gigabytes", "0.02", "--type", "Q8_0", "-q"], check=True)
        check_inspect(model)
        check_text(model, folder)
        check_shared_prompt(model)
        check_killed(model)
        check_server(model)


main()
