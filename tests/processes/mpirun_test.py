"""Chapter 07 under mpirun, one process a rank: the same results as with threads, here and on two hosts (network
namespaces), and an end when a process is killed or stalls. The host runtime's NCCL likewise, with one rank in each process.
A rank that waited for another one until its patience is over would take minutes, and say so.

Usage: mpirun_test.py TEST MPIRUN PROGRAM OTHER [NCCL_RANK]
       mpirun_test.py levers MPIRUN 16_capstone RUNS: nightly, so many combinations of chapter 16's levers that it runs"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TEST, MPIRUN, PROGRAM, OTHER = sys.argv[1:5]
NCCL_RANK = sys.argv[5] if len(sys.argv) > 5 else None
SMALL = ["--quick", "--budget", "1600KiB"]
# Works until it is caught.
LARGE = ["--model", "gpt:8-8-256", "--batch", "512", "--micro-batch", "8", "--seq", "64", "--budget", "none", "--filter", "1F1B",
         "--steps", "100000000"]
HANG = 900  # seconds; ctest's limit is longer
AGENT = """#!/bin/sh
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c 'hostname "$0"; eval "$@"' "$host" "$@"
"""


def skip(why):
    print("skipped:", why)
    sys.exit(2)


def need_gpus(count):
    """Ranks of a program made for GPUs need one each. The host runtime simulates them."""
    if not os.path.exists(os.path.join(os.path.dirname(PROGRAM), "plan", os.path.basename(PROGRAM))):
        return
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout if shutil.which("nvidia-smi") else ""
    gpus = sum(line.startswith("GPU") for line in listed.splitlines())
    if gpus < count:
        skip(f"{count} ranks need as many GPUs, and here are {gpus}")


def environment():
    # Tests may run as root, and there may be fewer cores than ranks. A rank that is a thread has one thread for its products, and
    # on some processors the library adds in another order with two: so a rank that is a process has one, too.
    return os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                         "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1",
                         "OOMLAB_HOST_NCCL_TIMEOUT": "240"}


def wait_for(condition, what):
    """Until it holds. The limit is one that only a hang reaches."""
    for _ in range(HANG * 20):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"never: {what()}")


def run(command, **options):
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=HANG, **options)


def results(path):
    """All that must be the same: not times, nor what the allocator holds in reserve."""
    with open(path) as file:
        run = json.load(file)
    kept = []
    for variant in run["variants"]:
        for rank in variant.get("ranks", []):
            del rank["peak_reserved_bytes"]
        kept.append({key: variant.get(key) for key in ("name", "outcome", "reason", "oom", "predicted_bytes", "ranks",
                                                       "peak_allocated_bytes", "by_category_bytes", "numerics")})
    assert run["passed"] and any(v["outcome"] == "ok" and "ranks" in v and v["ranks"] for v in kept)
    return kept


def compare(start, folder):
    threads, processes = os.path.join(folder, "threads.json"), os.path.join(folder, "processes.json")
    done = run([PROGRAM, *SMALL, "--devices", "4", "--json", threads])
    assert done.returncode == 0, done.stderr
    done = run([*start, PROGRAM, *SMALL, "--json", processes])
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    seen = results(processes)
    assert any(variant["outcome"] == "oom" for variant in seen), "a row that is out of memory belongs to the test"
    expected = results(threads)
    for here, there in zip(expected, seen, strict=True):
        assert here == there, f"{here}\n{there}"
    return done.stdout


def equal(folder):
    compare([MPIRUN, "-np", "4"], folder)


def two_hosts(folder):
    """Two network namespaces, joined by a virtual cable, with a host name each. mpirun reaches the second one, as it
    would by ssh, with the script AGENT."""
    if "Open" not in run([MPIRUN, "--version"]).stdout:
        skip("the options of this test are Open MPI's")
    if os.getuid() != 0 or not shutil.which("ip"):
        skip("network namespaces need root, and the package iproute2")
    mine = str(os.getpid())
    hosts = ["oomA" + mine, "oomB" + mine]
    made = []
    try:
        for host in hosts:
            done = run(["ip", "netns", "add", host])
            if done.returncode != 0:
                skip("network namespaces are not allowed here: " + done.stderr.strip())
            made.append(host)
        cable = [["ip", "link", "add", "oom0", "netns", hosts[0], "type", "veth", "peer", "name", "oom0", "netns", hosts[1]]]
        for i, host in enumerate(hosts):
            cable += [["ip", "-n", host, "addr", "add", f"10.99.0.{i + 1}/24", "dev", "oom0"],
                      ["ip", "-n", host, "link", "set", "oom0", "up"], ["ip", "-n", host, "link", "set", "lo", "up"]]
        for command in cable:
            done = run(command)
            if done.returncode != 0:
                skip(f"{' '.join(command)}: {done.stderr.strip()}")
        agent = os.path.join(folder, "agent")
        with open(agent, "w") as file:
            file.write(AGENT)
        os.chmod(agent, 0o755)
        if run([agent, hosts[0], "true"]).returncode != 0:
            skip("a host name of its own is not allowed here")
        net = "10.99.0.0/24"
        start = [agent, hosts[0], MPIRUN, "-x", "OOMLAB_HOST_NCCL_TIMEOUT", "--host", f"{hosts[0]}:2,{hosts[1]}:2", "-np", "4"]
        for name, value in {"plm": "rsh", "plm_rsh_agent": agent, "pml": "ob1", "btl": "tcp,self",
                            "oob_tcp_if_include": net, "btl_tcp_if_include": net}.items():
            start += ["--mca", name, value]
        seen = run([*start, "hostname"]).stdout.split()
        assert sorted(seen) == sorted(hosts * 2), seen
        compare(start, folder)
    finally:
        for host in made:
            run(["ip", "netns", "del", host])


def process_of(rank, parent):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                names = file.read().split(b"\0")
            if os.readlink(f"/proc/{pid}/exe") != os.path.realpath(PROGRAM):
                continue
        except OSError:
            continue
        if b"OMPI_COMM_WORLD_RANK=%d" % rank in names and b"OOMLAB_JOB=%d" % parent in names:
            return int(pid)
    return None


def lose_rank_2(how):
    if "Open" not in run([MPIRUN, "--version"]).stdout:
        skip("ranks are found by Open MPI's environment variables")
    log = tempfile.TemporaryFile("w+")
    job = subprocess.Popen([MPIRUN, "-np", "4", PROGRAM, *LARGE], env=environment() | {"OOMLAB_JOB": str(os.getpid())},
                           stdout=log, stderr=subprocess.STDOUT)
    def said():
        log.seek(0)
        return log.read()
    try:
        wait_for(lambda: "rank 3 has device" in said() or job.poll() is not None, said)
        victim = process_of(2, os.getpid())
        assert victim and job.poll() is None, said()
        os.kill(victim, how)
        code = job.wait(timeout=HANG)
        print(f"{said()}\nended with exit code {code}")
        assert code != 0
        assert "rank 2" in said().split("rank 3 has device")[1]
        wait_for(lambda: not any(process_of(rank, os.getpid()) for rank in range(4)), lambda: "a process is left behind")
    finally:
        if job.poll() is None:
            job.kill()


def killed(_):
    lose_rank_2(signal.SIGKILL)


def stalled(_):
    lose_rank_2(signal.SIGSTOP)


def refused(_):
    """One line of ours, from one process, and its exit code."""
    for options, words in [(["--devices", "3"], "--devices 3 does not fit the 4 processes started"),
                           (["--tp", "2"], "2 ranks"), (["--dp", "8"], "8 ranks"), (["--plan"], "without mpirun"),
                           (["--filter", "^one device"], "no variant has several ranks"), (["--batch", "0"], "--batch"), (["--text", "/does/not/exist"], "/does/not/exist")]:
        done = run([MPIRUN, "-np", "4", PROGRAM, "--quick", *options])
        lines = [line for line in done.stderr.splitlines() if line.startswith("07_multi_gpu: ")]
        assert done.returncode == 64 and len(lines) == 1 and words in lines[0], (options, done)
    done = run([MPIRUN, "-np", "2", OTHER, "--quick"])
    assert done.returncode == 2 and "does not use MPI" in done.stderr, done


def blamed(_):
    """A call of rank 1 fails. Rank 0 fails, too, because it waits for rank 1; but it is rank 1 that is named."""
    options, named = ["--quick", "--budget", "none", "--filter", "DDP"], 0
    for call in range(450, 1000, 50):  # the run has about 1,100
        if named == 2:
            return
        done = run([MPIRUN, "-np", "1", PROGRAM, *options, ":", "-np", "1", "env", f"OOMLAB_FAULT={call}", PROGRAM, *options])
        if done.returncode == 2:  # it was an allocation: a row of the table, and no variant was measured
            assert "DDP x 2: OOM" in done.stdout, (call, done)
            continue
        lines = [line for line in done.stderr.splitlines() if line.startswith("07_multi_gpu: ")]
        assert done.returncode == 1 and len(lines) == 1 and lines[0].startswith("07_multi_gpu: rank 1: "), (call, done)
        named += 1
    assert named >= 2


def nccl_ranks(scenario, ranks):
    """Exit code, and all that was said, of a scenario of nccl_rank."""
    with tempfile.TemporaryDirectory() as marks:
        done = run([MPIRUN, "-np", str(ranks), NCCL_RANK, scenario, marks])
    return done.returncode, done.stdout + done.stderr


def nccl(_):
    """All-gather, all-reduce and broadcast reach all alike, and the ring gives everyone the broadcast's values: so every
    rank's hash is the same. The first rank may end before the others."""
    for ranks in (2, 3, 4):
        code, said = nccl_ranks("all", ranks)
        print(said)
        got = {line.split(": ", 1)[1] for line in said.splitlines() if line.startswith("rank ")}
        assert code == 0 and said.count("rank ") == ranks and len(got) == 1 and "live: nothing" in got.pop(), said
    code, said = nccl_ranks("early", 3)
    assert code == 0 and said.count("live: nothing") == 3, said


def nccl_failures(_):
    """Whatever happens to rank 1: the others end, and it is named."""
    for scenario, words, complaints in [("lost before set-up", "rank 1", None), ("late", "waits for rank 1", 3),
                                        ("missing", "rank 1, which does not come", 2), ("sizes", "3 ranks for one of them, 4 for another", 3),
                                        ("twice", "rank 1 comes twice", 3), ("lost at work", "rank 1", None),
                                        ("stalled", "waits for rank 1, which does not come", 3), ("aborted", "rank 1 has aborted", 2)]:
        code, said = nccl_ranks(scenario, 3)
        print(f"{scenario}: exit code {code}\n{said}")
        assert code != 0 and words in said, scenario
        assert ("does not come" in said) == (scenario in ("late", "missing", "stalled")), scenario
        # When a process is lost, mpirun ends the others: perhaps before they complain, perhaps not.
        assert complaints is None or said.count(": error ") == complaints, scenario
    code, said = nccl_ranks("foreign", 2)
    assert code != 0 and said.count("not from ncclGetUniqueId") == 2, said


# What the levers of chapter 16 are set to, those of a grid apart. None may be left out.
GRIDS = [["--dp", "2"], ["--tp", "2"], ["--pp", "2"], ["--dp", "4"], ["--dp", "2", "--tp", "2"], ["--dp", "2", "--pp", "2"], ["--tp", "2", "--pp", "2"],
         ["--cp", "2"], ["--cp", "2", "--dp", "2"], ["--cp", "2", "--tp", "2"]]
LEVERS = ["--zero 1", "--zero 2", "--zero 3", "--precision bf16", "--precision fp16", "--micro-batch 1", "--attention tiled", "--attention fused",
          "--loss chunked", "--lean", "--tiles-mlp 3", "--checkpoint 1", "--checkpoint 1 --checkpoints host", "--optimizer adamw8", "--optimizer sgd",
          "--optimizer adafactor", "--optimizer adamw8 --wide-embeddings", "--weight-update stochastic", "--moments paged", "--in-backward", "--offload", "--stream",
          "--method lora --rank 2", "--method qlora --rank 2", "--lengths ragged --pack"]


def drawn(_):
    """No lever is left out of what is drawn at night."""
    with open(os.path.join(os.path.dirname(__file__), "../../bench/results/plan/16_lever_pairs.json")) as file:
        first = {lever["options"][0]["name"] for lever in json.load(file)["levers"]}
    of_grids = {"sequence-parallel", *(option[2:] for option in sum(GRIDS, []))}
    missing = first - of_grids - {option[2:] for option in " ".join(LEVERS).split()}
    assert not missing, f"never drawn: {missing}"


def levers(folder):
    """Chapter 16's levers, some of them at a time on some grid: what ranks in processes say is what ranks in threads say."""
    draw = random.Random(16)
    wanted, ran, unwanted = int(OTHER), 0, 0
    while ran < wanted:
        grid = draw.choice(GRIDS)
        pulled = draw.sample(LEVERS, draw.randint(1, 6))
        model = draw.choice(["gpt:2-2-32", "llama:2-4-2-64-172", "bert:3-4-48"])
        options = ["--quick", "--model", model, "--batch", "4", "--seq", "16", "--budget", "none", "--filter", "chosen", *grid]
        if "--cp" in grid:  # a ring needs that form
            options += draw.choice([["--attention", "fused"], ["--context", "ulysses"]])
        for lever in pulled:
            if lever.split()[0] not in options:
                options += lever.split()
        if "--tp" in grid and draw.random() < 0.5:
            options.append("--sequence-parallel")
        ranks = 1
        for size in grid[1::2]:
            ranks *= int(size)
        threads, processes = os.path.join(folder, "threads.json"), os.path.join(folder, "processes.json")
        done = run([PROGRAM, *options, "--json", threads])
        if done.returncode == 64:
            assert len(done.stderr.splitlines()) == 1, done.stderr
            unwanted += 1
            continue
        assert done.returncode == 0, (options, done.stdout, done.stderr)
        done = run([MPIRUN, "-np", str(ranks), PROGRAM, *options, "--json", processes])
        assert done.returncode == 0, (options, done.stdout, done.stderr)
        assert results(threads) == results(processes), (options, results(threads), results(processes))
        ran += 1
    print(f"{ran} combinations ran on ranks in threads and in processes, with the same results; {unwanted} were refused")


need_gpus(4)
with tempfile.TemporaryDirectory() as folder:
    {"equal": equal, "two_hosts": two_hosts, "killed": killed, "stalled": stalled, "refused": refused, "blamed": blamed,
     "nccl": nccl, "nccl_failures": nccl_failures, "drawn": drawn, "levers": levers}[TEST](folder)
print("ok")
