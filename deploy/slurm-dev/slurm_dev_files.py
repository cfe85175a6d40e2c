"""The configuration files of the small Slurm, as pure functions of what it shall be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the small Slurm consists of."""

    folder: Path
    """Everything of it lies here."""
    host: str
    """Host name of this machine; all nodes run on it."""
    port: int
    """First of the ports it listens on: controller, accounting, then one a node."""
    cluster: str = "dev"
    """Name of the cluster."""
    nodes: int = 4
    """Nodes, called node1, node2, …."""
    node_prefix: str = "node"
    """Start of the nodes' names."""
    cpus: int = 4
    """CPUs that each node claims to have."""
    memory_mib: int = 65536
    """Memory that each node claims to have."""
    gpus: int = 2
    """Fake GPUs of each node."""
    node_command: tuple[str, ...] = ()
    """Command that runs the daemon of a node, such as one that gives it other mounts."""

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of all nodes."""
        return tuple(f"{self.node_prefix}{number}" for number in range(1, self.nodes + 1))

    @property
    def node_range(self) -> str:
        """Names of all nodes as Slurm writes them."""
        return f"{self.node_prefix}[1-{self.nodes}]"

    @property
    def num_ports(self) -> int:
        """Ports in use, from `port` on."""
        return self.nodes + 2

    @property
    def config(self) -> Path:
        """The file that `SLURM_CONF` names."""
        return self.folder / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        """Socket of the daemon that signs messages; that of the machine is not used."""
        return self.folder / "munge" / "socket"

    @property
    def mysql_socket(self) -> Path:
        """Socket of the database; it listens on no port."""
        return self.folder / "mysql.sock"

    def gpu(self, number: int) -> Path:
        """Device file of a fake GPU; the nodes share them."""
        return self.folder / f"fakegpu{number}"


def slurm_conf(shape: Shape) -> str:
    """Configuration of the controller and the nodes.

    Source: https://slurm.schedmd.com/slurm.conf.html
    """
    folder = shape.folder
    last = shape.port + 1 + shape.nodes
    return f"""\
ClusterName={shape.cluster}
SlurmctldHost={shape.host}(127.0.0.1)
SlurmctldPort={shape.port}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={shape.munge_socket}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool/%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
MpiDefault=none
KillWait=2
MessageTimeout=5
SlurmdTimeout=5
UnkillableStepTimeout=10
SlurmctldTimeout=10
MinJobAge=300
JobRequeue=0
GresTypes=gpu
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={shape.port + 1}
AccountingStorageEnforce=limits
AccountingStoragePass={shape.munge_socket}
AccountingStorageTRES=gres/gpu
NodeName={shape.node_range} NodeHostname={shape.host} NodeAddr=127.0.0.1 \
Port=[{shape.port + 2}-{last}] CPUs={shape.cpus} RealMemory={shape.memory_mib} \
Gres=gpu:{shape.gpus}
PartitionName=main Nodes=ALL Default=YES MaxTime=2-00:00:00 DefMemPerNode=8192 PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=2-00:00:00 DefMemPerNode=8192 PriorityTier=9
"""


def gres_conf(shape: Shape) -> str:
    """GPUs of the nodes: Slurm wants a device file of its own for each."""
    return f"NodeName={shape.node_range} Name=gpu File={shape.folder}/fakegpu[0-{shape.gpus - 1}]\n"


def slurmdbd_conf(shape: Shape) -> str:
    """Configuration of the accounting daemon; holds no secret, the database asks for none."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={shape.munge_socket}
DbdAddr=127.0.0.1
DbdHost={shape.host}
DbdPort={shape.port + 1}
SlurmUser=root
CommunicationParameters=NoInAddrAny
PidFile={shape.folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
"""
