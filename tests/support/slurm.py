"""A Slurm cluster on this machine, from Debian's packages: nothing is installed, and nothing of it is left."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PACKAGES = "slurmd slurmctld slurm-client slurm-wlm-basic-plugins libhwloc15 libmunge2 libjson-c5".split()
NODES = ("n1", "n2", "n3")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY")
SETTINGS = """\
ClusterName=faultline
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmdPidFile={folder}/%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
PluginDir={libraries}/slurm-wlm
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=5
MinJobAge=3600
SlurmdParameters=config_overrides
"""


class NoPackages(Exception):
    """This machine can't have Slurm's packages."""


def unpacked(folder):
    """Unpack Debian's packages; raises NoPackages where there is no apt, or not this user."""
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise NoPackages("Slurm's packages come from apt-get, which isn't here")
    if os.getuid():
        raise NoPackages("slurmd needs root")
    folder.mkdir()
    for words in (["download", *PACKAGES], ["update"], ["download", *PACKAGES]):  # its lists may be old, or not there
        done = subprocess.run(["apt-get", *words], cwd=folder, check=False, capture_output=True, text=True)
        if words != ["update"] and not done.returncode:
            break
    else:
        raise NoPackages(f"apt-get can't have Slurm's packages: {done.stderr[-300:]}")
    for file in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", file, folder / "root"], check=True)
        file.unlink()
    return folder / "root"


@dataclass
class Slurm:
    """The controller and its nodes; `environment` makes Slurm's commands talk to it."""

    folder: Path
    root: Path
    processes: dict[str, subprocess.Popen] = field(default_factory=dict)

    def __post_init__(self):
        libraries = self.root / "usr/lib/x86_64-linux-gnu"
        ports = free_ports(1 + len(NODES))
        host = socket.gethostname().partition(".")[0]
        text = SETTINGS.format(host=host, ports=ports, folder=self.folder, libraries=libraries)
        for name, port in zip(NODES, ports[1:], strict=True):
            text += f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=4000\n"
        text += f"PartitionName=p Nodes={','.join(NODES)} Default=YES MaxTime=60 State=UP\n"
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "state").mkdir()
        for name in NODES:
            (self.folder / "spool" / name).mkdir(parents=True)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "RAY_"))},
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "LD_LIBRARY_PATH": f"{libraries}:{libraries}/slurm-wlm",
            "PATH": f"{self.root}/usr/bin:{os.environ['PATH']}",
        }

    def start(self):
        self.launch("slurmctld", "slurmctld-wlm", "-D", "-c")
        wait(lambda: "UP" in self.ask("scontrol", "ping"), 30, "slurmctld doesn't start")
        for name in NODES:
            self.start_node(name)
        wait(lambda: self.ask("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * len(NODES), 60, "no nodes")

    def start_node(self, name):
        self.launch(name, "slurmd-wlm", "-D", "-N", name, "-d", str(self.root / "usr/sbin/slurmstepd-wlm"))

    def launch(self, name, program, *words):
        with (self.folder / f"{name}.out").open("a") as out:
            self.processes[name] = subprocess.Popen(
                [self.root / "usr/sbin" / program, *words],
                env=self.environment,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def ask(self, *words):
        """What one of Slurm's commands prints."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, check=False, timeout=60)
        return done.stdout + done.stderr

    def job(self, number):
        """What Slurm knows of a job or task, by name."""
        words = self.ask("scontrol", "-o", "show", "job", str(number)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def ended(self, number, seconds):
        """Wait for a job's end; gives its state and its exit code as Slurm writes it."""
        wait(lambda: self.job(number).get("JobState") in ENDED, seconds, f"job {number} doesn't end", self)
        return self.job(number)["JobState"], self.job(number)["ExitCode"]

    def kill_node(self, name):
        """End a node as a power cut does: slurmd, and all that runs under it."""
        there = [*self.of(name)]
        above = [process.parent() for process in there]  # slurmstepd, which would report how the job ended
        self.processes.pop(name).kill()
        for process in [*(each for each in above if each and each.name().startswith("slurmstepd")), *there]:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def of(self, name=""):
        """The processes of a node's jobs, or of all nodes'."""
        nodes = (name,) if name else NODES
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environment = process.environ()
                of_this = environment.get("SLURM_CONF") == self.environment["SLURM_CONF"]
                if of_this and environment.get("SLURMD_NODENAME") in nodes:
                    yield process

    def stop(self):
        """End all that is left of it; gives what jobs had left."""
        self.ask("scancel", "--user=root")
        with contextlib.suppress(AssertionError):
            wait(lambda: not self.ask("squeue", "-h").strip(), 30, "")
            wait(lambda: not [*self.of()], 10, "")
        left = [(process.pid, process.name()) for process in self.of()]
        for name in NODES:
            for process in self.of(name):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return left


def wait(true, seconds, why, slurm=None):
    """Look until something is true; raises AssertionError with what Slurm knows if it never is."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"{why}: {slurm.ask('scontrol', 'show', 'job') if slurm else ''}")
        time.sleep(0.3)


def free_ports(number):
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
