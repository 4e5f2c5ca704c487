"""How the ranks of a cell meet: over loopback, or between nodes."""

import fcntl
import os
import socket
import struct

import torch
from torch.torch_version import TorchVersion

from faultline.ranks.job import LOOPBACK, Job

SIOCGIFADDR = 0x8915  # netdevice(7): the IPv4 address of an interface


def meet(rank: int, world: int, device: torch.device, backend: str, job: Job) -> None:
    """Make the process group, over loopback or between nodes; under somebody else's launcher, with its environment.

    The ranks meet at a socket that the first server opened: no port has to be agreed on, none can be taken.
    """
    # Libraries take the device from LOCAL_RANK: ranks that share a GPU have to share the number.
    local = rank - job.first_rank if device.index is None else device.index
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(local))
    os.environ.update(WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(job.ranks_here or world))
    if torch.distributed.is_initialized():
        return
    if job.address:
        name = interface(job.address)
        os.environ.update(GLOO_SOCKET_IFNAME=name, NCCL_SOCKET_IFNAME=name)
    store = None
    if job.port:
        address = job.meeting or LOOPBACK
        os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(job.port))
        listening = job.listening if rank == 0 else None
        store = torch.distributed.TCPStore(
            address,
            job.port,
            world,
            rank == 0,
            wait_for_workers=False,
            master_listen_fd=listening,
            use_libuv=TorchVersion(torch.__version__) >= (2, 8),  # earlier, it takes no socket that is open
        )
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=world)


def node(job: Job) -> dict[str, object]:
    """The proof of the node that this rank runs on: all of a node have its rank server for a parent."""
    shown = {"name": job.node, "host": socket.gethostname(), "address": job.address or LOOPBACK}
    return {**shown, "server": os.getppid()}


def interface(address: str) -> str:
    """The network interface of this machine that has an IPv4 address; raises LookupError if none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no such address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    raise LookupError(f"no network interface of this machine has the address {address}")
