"""A rank server without the libraries under test: it starts at once, and its ranks do what the functions here do.

`command` gives the name of a program to use as `RankServer(python=...)`; a
job's `inject` names the function, which is called with the rank. Its ranks show the evidence of DDP.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]


def command(folder, python=sys.executable):
    """An executable in `folder` that runs this file, whatever arguments it is given."""
    file = folder / "light"
    file.write_text(f'#!/bin/sh\nexec "{python}" "{__file__}"\n')
    file.chmod(0o755)
    return str(file)


def survivors(server):
    """Processes that descend from the server, by the TMPDIR that they inherit; a killed one may take a moment."""
    from faultline.runs import scratch

    server_pid = server._process.pid if server._process else None
    for _ in range(50):
        results = [process for process in scratch.processes(Path(server.folder)) if process.pid != server_pid]
        if not results:
            break
        time.sleep(0.1)
    return results


def left_nothing(server):
    """Fail if a cell left a process, a connection or a file."""
    from faultline.runs import scratch

    assert not survivors(server), "a process of a cell is still there after it"
    if server._process and psutil.pid_exists(server._process.pid):
        assert not psutil.Process(server._process.pid).net_connections(), "the server keeps a rank's connection"
    assert {file.name for file in server.folder.iterdir()} <= {"server.log", scratch.HELD}, "a cell left files behind"


def have_ended(pids):
    """Whether processes end within the time that a kill may take; a zombie has ended."""
    results = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            results.append(psutil.Process(pid))
    _, alive = psutil.wait_procs(results, timeout=5)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def main(job, rank):
    """Stands in for faultline.ranks.main.main."""
    report = Report(rank, evidence={**EVIDENCE, "world_size": job.world_size, "at_fork": job.at_fork})
    Path(job.folder, f"rank{rank}.evidence").write_text(json.dumps(report.evidence))
    if job.record:
        Path(job.reference).write_text(Path(job.reference).name)
        return report
    try:
        if job.reference and Path(job.reference).read_text() != Path(job.reference).name:
            raise ValueError("this is another cell's reference")
        if job.inject == "trains":
            trains(report)
        else:
            report.evidence["found"] = globals()[job.inject](rank)
    except Exception as error:  # noqa: BLE001
        report.error = ErrorReport(type(error).__name__, str(error), "", at=time.monotonic())
    return report


def trains(report):
    """Says all that a rank says which does what the reference does."""
    report.evidence |= {"checkpointing_seen": "off", "gradients_remain": True, "bytes_held": 4, "bytes_whole": 4}
    report.losses = [float(report.rank)] * STEPS
    report.steps = [Step(gradients={"w": 1e-6}, weights={"w": 2e-6})] * STEPS
    report.compared, report.digests = ("gradients", "weights"), ("d",) * STEPS


def nothing(rank):
    pass


def environment(rank):
    return dict(os.environ)


def processors(rank):
    return sorted(os.sched_getaffinity(0))


def wait_for_ever():
    threading.Event().wait()


def waits(rank):
    wait_for_ever()


def last_waits_first_fails(rank):
    if rank == 0:
        raise ValueError("the cause")
    wait_for_ever()


def killed_at_first(rank):
    """Killed as by the kernel for want of memory, once by each rank server; then as `last_waits_first_fails`."""
    marker = Path(os.environ["TMPDIR"], "killed")
    if rank == 0 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    last_waits_first_fails(rank)


def silent(rank):
    if rank == 1:
        os._exit(0)
    wait_for_ever()


def pipe():
    """This rank's end of the pipe to the server: the only one that a rank holds."""
    links = {int(fd.name): os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.exists() or fd.is_symlink()}
    (results,) = [fd for fd, target in links.items() if target.startswith("pipe:")]
    return results


def closes_its_pipe(rank):
    if rank == 1:
        os.close(pipe())


def closes_its_pipe_and_waits(rank):
    if rank == 1:
        os.close(pipe())
        wait_for_ever()


def dies_but_its_fork_lives(rank):
    """The fork holds the pipe's end open, as a data loader's worker would."""
    if rank == 1:
        if os.fork() == 0:
            time.sleep(600)
        os._exit(7)
    wait_for_ever()


def long_report(rank):
    return "x" * 5_000_000


def reports_and_aborts(rank):
    """A thread brings the process down after its rank has said what happened, as NCCL's watchdog does."""
    if rank == 1:
        threading.Timer(0.3, os.abort).start()
        raise ValueError("the cause")
    time.sleep(1)
    raise RuntimeError("Connection closed by peer")


def victim_before_cause(rank):
    """The cause comes later than any time-out that a supervisor might think of."""
    if rank == 0:
        raise RuntimeError("Connection closed by peer")
    end = time.monotonic() + 4
    while time.monotonic() < end:
        pass
    raise ValueError("the cause")


def victim_of_a_hang(rank):
    if rank == 0:
        raise RuntimeError("Connection closed by peer")
    wait_for_ever()


def later():
    """Give the peer time to go first, and keep the supervisor waiting: it ends a failed cell whose ranks sleep."""
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass


def fails_after_its_peer(rank):
    if rank == 1:
        raise ValueError("the cause")
    later()
    raise ValueError("the second error")


def dies_after_its_peer(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    later()
    os._exit(3)


def aborts_after_its_peer_failed(rank):
    """As NCCL's watchdog does when a peer is gone."""
    if rank == 0:
        raise ValueError("the cause")
    later()
    os.abort()


def fails_after_its_peer_died(rank):
    if rank == 1:
        os._exit(3)
    later()
    raise ValueError("the second error")


def fails_beside_a_spinning_rank(rank):
    if rank == 1:
        raise ValueError("the cause")
    spins(rank)


def spins(rank):
    while True:
        pass


def spins_in_library(rank):
    """As a thread of autograd's runs Python while the main one waits for it in C++."""
    threading.Thread(target=spins, args=(rank,), daemon=True).start()
    libc = ctypes.CDLL(None)
    while libc.pause():  # -1 each time that a signal has come
        pass


def stops_among_threads(rank):
    for _ in range(20):
        threading.Thread(target=wait_for_ever, daemon=True).start()
    os.kill(os.getpid(), signal.SIGSTOP)
    wait_for_ever()


def listens(rank):
    """A program that nobody is the parent of, with a port; gives both."""
    program = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    parent = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True, "
        "stdout=-1); print(p.pid, p.stdout.readline().decode())"
    )
    command = [sys.executable, "-c", parent, f"{program}; time.sleep(600)"]
    return [int(word) for word in subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.split()]


def waits_for_a_program(rank):
    """What a compiler looks like: the rank sleeps, the program that it started works."""
    if rank == 1:
        subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 4: pass"], check=True)


def starts_programs(rank):
    """One in the rank's process group, one in a session of its own, and one whose parent has left it to others."""
    sleep = ["sleep", "600"]
    parent = "import subprocess, sys; print(subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=2).pid)"
    orphan = subprocess.run([sys.executable, "-c", parent], stdout=subprocess.PIPE, check=True).stdout
    daemon = subprocess.Popen(sleep, start_new_session=True, env={})
    return [subprocess.Popen(sleep).pid, daemon.pid, int(orphan)]


def leaves_its_group(rank):
    if rank == 1:
        os.setsid()


def kills_the_server(rank):
    """On every server that it meets, and with a program running that knows no parent."""
    if rank == 1:
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        os.kill(os.getppid(), signal.SIGKILL)
    wait_for_ever()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from faultline import strategies
    from faultline.base import packages
    from faultline.cells.cell import STEPS
    from faultline.ranks import server as ranks_server
    from faultline.ranks.report import ErrorReport, Report, Step

    EVIDENCE = {"wrapper": "DistributedDataParallel", "checkpointing_set": "off", **asdict(strategies.options("ddp"))}

    sys.modules["faultline.ranks.main"] = sys.modules["__main__"]
    ranks_server.preload.everything = ranks_server.preload.for_fsdp2 = lambda: None
    packages.versions = dict
    ranks_server.describe = lambda: {"described": os.getpid()}
    ranks_server.main()
