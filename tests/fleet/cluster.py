"""A Slurm cluster on this machine: each node is a set of namespaces (processes, mounts, network, cgroups, host name)
with a simulated GPU, a daemon of sluice and slurmd. The controller runs beside them. slurm.py uses it, in namespaces of
its own: whatever happens, no process, mount or address outlives it."""

import ctypes
import json
import os
import pathlib
import pwd
import secrets
import shutil
import signal
import subprocess
import textwrap
import time

HERE = pathlib.Path(__file__).resolve().parent
FLEET = HERE.parents[1] / "adapters/fleet/slurm"
CGROUPS = pathlib.Path("/sys/fs/cgroup")
# Where the simulated GPU of each node is, in the node's own /run.
GPU = "/run/gpu"
DEVICE = {"SLUICE_SIM_ROOT": GPU, "SLUICE_KFD_DEVICE": f"{GPU}/dev/kfd",
          "SLUICE_KFD_SYSFS": f"{GPU}/sys/class/kfd/kfd", "SLUICE_KFD_DEBUGFS": f"{GPU}/sys/kernel/debug/kfd",
          "SLUICE_NVIDIA_DEVICE": f"{GPU}/dev/nvidiactl", "SLUICE_NVIDIA_PROC": f"{GPU}/proc/driver/nvidia"}
LEASE = 5  # s, of sluice-gangs.
PATIENCE = 60  # s, for what has no bound of its own. Long, so that a busy machine fails no test.
LIBC = ctypes.CDLL(None, use_errno=True)


class Failure(Exception):
    """Ends a case; its text is the reason."""


def require(condition, text):
    if not condition:
        raise Failure(text)


def wait_until(condition, limit, what):
    """Waits for a condition; returns its value."""
    until = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise Failure(f"{what}: not within {limit:g} s")
        time.sleep(0.02)


def run(*command, environment=None, check=True, limit=PATIENCE, given=None):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=limit, input=given,
                          env={**os.environ, **(environment or {})})
    if check and done.returncode != 0:
        raise Failure(f"'{' '.join(map(str, command))}' ended with code {done.returncode}: "
                      f"{(done.stderr or done.stdout).strip()}")
    return done


def hierarchies():
    """The mount points of the machine's cgroup hierarchies, with what mount needs to mount each anew."""
    found = []
    for line in pathlib.Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2":
            found.append((where, kind, ""))
        elif kind == "cgroup":
            names = [each for each in options.split(",")
                     if each.partition("=")[0] not in ("rw", "ro", "relatime", "nosuid", "nodev", "noexec", "xattr",
                                                       "release_agent", "clone_children")]
            found.append((where, kind, ",".join(f"none,{each}" if each.startswith("name=") else each for each in names)))
    return found


class Node:
    """A node of the cluster. Its first process starts the others, and ends them all with itself."""

    profile = "mi300x"

    def __init__(self, cluster, number):
        self.cluster, self.number, self.name = cluster, number, f"node{number}"
        self.address = f"10.77.0.{10 + number}"
        self.folder = cluster.work / self.name
        for each in ("spool", "state", "log"):
            (self.folder / each).mkdir(parents=True)
        self.start()

    def groups(self):
        """The cgroups of its processes, one in each hierarchy."""
        return [CGROUPS / pathlib.Path(where).relative_to(CGROUPS) / self.cluster.group / self.name
                for where, _, _ in hierarchies()]

    def setup(self):
        """Lines of shell that prepare its mounts."""
        mounts = "\n".join(f"umount -l {where}; mount -t {kind} {f'-o {options}' if options else ''} cgroup {where}"
                           for where, kind, options in hierarchies())
        return mounts + textwrap.dedent(f"""
            mount -t tmpfs tmpfs /run
            mkdir -p /run/lock /run/munge /var/spool/slurmd /var/lib/sluice
            mount --bind {self.cluster.work}/munge /run/munge
            mount -t tmpfs tmpfs /usr/local/sbin
            ln -s {self.cluster.bin}/sluice /usr/local/sbin/sluice
            mount --bind {self.folder}/spool /var/spool/slurmd
            mount --bind {self.folder}/state /var/lib/sluice
            """)

    def start(self):
        groups = self.groups()
        for each in groups:
            self.cluster.make_group(each)

        def enter():
            LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            for each in groups:
                (each / "cgroup.procs").write_text(str(os.getpid()))

        script = f"set -eu\nhostname {self.name}\nmount --make-rprivate /\n{self.setup()}" + textwrap.dedent(f"""\
            echo ready
            read -r go
            ip link set lo up
            ip address add {self.address}/24 dev eth0
            ip link set eth0 up
            {self.cluster.bin}/sluice-sim --root {GPU} --profile {self.profile} > {self.folder}/log/sim 2>&1 &
            while read -r line; do eval "$line"; done
            """)
        self.process = subprocess.Popen(
            ["unshare", "--cgroup", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc",
             "bash", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=(self.folder / "log/node").open("w"), text=True, env={**os.environ, **DEVICE}, preexec_fn=enter)
        if self.process.stdout.readline() != "ready\n":
            raise Failure(f"{self.name} did not start: {(self.folder / 'log/node').read_text()}")
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.pid = int(children[0])
        run("ip", "link", "add", f"veth{self.number}", "type", "veth", "peer", "name", "eth0", "netns", self.pid)
        run("ip", "link", "set", f"veth{self.number}", "master", "bridge0", "up")
        self.order("")
        wait_until(lambda: self.inside("test", "-e", f"{GPU}/sim/control", check=False).returncode == 0, PATIENCE,
                   f"{self.name}: simulated GPU")

    def order(self, line):
        """A line of shell for the node's first process."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def inside(self, *command, **how):
        """Runs a command on the node."""
        how["environment"] = {**DEVICE, **how.get("environment", {})}
        return run("nsenter", "-t", self.pid, "--all", "--", *command, **how)

    def sluice(self, *arguments, **how):
        return self.inside(self.cluster.bin / "sluice", *arguments, **how)

    def start_slurmd(self):
        self.order(f"slurmd -D < /dev/null >> {self.folder}/log/slurmd.out 2>&1 &")

    def start_daemon(self):
        """sluice's daemon, with the role store that the prolog writes."""
        self.order(f"{self.cluster.bin}/sluice run --config {self.cluster.work}/sluice.toml < /dev/null "
                   f">> {self.folder}/log/daemon 2>&1 &")
        wait_until(lambda: self.sluice("status", "--json", check=False).returncode == 0, PATIENCE,
                   f"{self.name}: daemon")

    def start_gangs(self, etcd="https://10.77.0.1:2379"):
        """sluice-gangs, which speaks for the daemon with the other nodes."""
        tls = self.cluster.work / "tls"
        self.order(f"{self.cluster.bin}/sluice-gangs --etcd {etcd} --cluster test --ca {tls}/ca.pem --cert {tls}/client.pem "
                   f"--key {tls}/client.key --lease {LEASE}s < /dev/null >> {self.folder}/log/gangs 2>&1 &")

    def signal(self, which, program):
        self.inside("pkill", f"-{which}", "-x", program[:15])

    def cut(self, *directions):
        """Drops what comes from etcd ("in"), or what goes there ("out"); with no direction, nothing any more."""
        rules = {"in": "tcp sport 2379 drop", "out": "tcp dport 2379 drop"}
        hooks = {"in": "input", "out": "output"}
        text = "table inet cut {}\ndelete table inet cut\n" + ("table inet cut {\n" + "".join(
            f"chain {each} {{ type filter hook {hooks[each]} priority 0; {rules[each]}; }}\n" for each in directions)
            + "}\n" if directions else "")
        self.inside("nft", "-f", "-", given=text)

    def status(self):
        """On a busy machine, the daemon may not answer in time."""
        return json.loads(wait_until(lambda: self.sluice("status", "--json", check=False).stdout, PATIENCE,
                                     f"{self.name}: status"))


class Cluster:
    """Controller, accounting and nodes. Runs in mount, network, process and host name namespaces of its own."""

    def __init__(self, bin_folder, work, nodes, group):
        self.bin, self.work = pathlib.Path(bin_folder).resolve(), work
        self.count, self.group = nodes, group
        self.services, self.nodes = [], []

    def make_group(self, path):
        for each in reversed([path, *path.parents][:2]):
            each.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):  # A new group of cpuset (v1) may use nothing.
                if (each / name).exists() and (each.parent / name).exists() and not (each / name).read_text().strip():
                    (each / name).write_text((each.parent / name).read_text())

    def start(self):
        (self.work / "log").mkdir()
        run("mount", "--make-rprivate", "/")
        run("mount", "-t", "tmpfs", "tmpfs", "/run")
        os.mkdir("/run/lock")
        run("hostname", "controller")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "bridge0", "type", "bridge")
        run("ip", "address", "add", "10.77.0.1/24", "dev", "bridge0")
        run("ip", "link", "set", "bridge0", "up")
        self.write_files()
        self.start_munge()
        self.start_accounting()
        self.start_controller()
        self.start_etcd()
        for number in range(1, self.count + 1):
            self.nodes.append(Node(self, number))
        for node in self.nodes:
            node.start_daemon()
            node.start_gangs()
            node.start_slurmd()
        wait_until(self.idle, PATIENCE, "idle nodes in sinfo")

    def idle(self):
        return run("sinfo", "-h", "-o", "%T %D", check=False).stdout.split() == ["idle", str(self.count)]

    def write_files(self):
        last = self.count
        (self.work / "hosts").write_text("127.0.0.1 localhost\n10.77.0.1 controller\n" + "".join(
            f"10.77.0.{10 + number} node{number}\n" for number in range(1, last + 1)))
        for name, lines in (("passwd", "ann:x:2001:2001::/:/bin/bash\nbob:x:2002:2002::/:/bin/bash\n"),
                            ("group", "ann:x:2001:\nbob:x:2002:\nonline:x:2003:root,ann\n")):
            (self.work / name).write_text(pathlib.Path("/etc", name).read_text() + lines)
        for name in ("hosts", "passwd", "group"):
            run("mount", "--bind", self.work / name, f"/etc/{name}")
        etc = self.work / "etc"
        (etc / "sluice").mkdir(parents=True)
        for script in ("prolog.sh", "epilog.sh"):
            shutil.copy(FLEET / script, etc / "sluice" / script)
            (etc / "sluice" / script).chmod(0o755)
        (self.work / "slurm_roles").write_text(ROLES)
        (etc / "slurm.conf").write_text(textwrap.dedent(f"""\
            ClusterName=test
            SlurmctldHost=controller(10.77.0.1)
            SlurmUser=root
            AuthType=auth/munge
            ProctrackType=proctrack/cgroup
            TaskPlugin=task/cgroup
            SelectType=select/cons_tres
            SelectTypeParameters=CR_CPU
            GresTypes=gpu,shard
            StateSaveLocation={self.work}/state
            SlurmdSpoolDir=/var/spool/slurmd
            SlurmctldPidFile=/run/slurmctld.pid
            SlurmdPidFile=/run/slurmd.pid
            SlurmctldLogFile={self.work}/log/slurmctld
            SlurmdLogFile={self.work}/log/slurmd.%n
            SlurmdParameters=config_overrides
            ReturnToService=2
            SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=10000,bf_interval=1
            PreemptType=preempt/partition_prio
            PreemptMode=SUSPEND,GANG
            Prolog=/etc/slurm/sluice/prolog.sh
            Epilog=/etc/slurm/sluice/epilog.sh
            PrologFlags=Alloc
            AccountingStorageType=accounting_storage/slurmdbd
            AccountingStorageHost=controller
            AccountingStorageEnforce=associations,qos
            NodeName=node[1-{last}] NodeAddr=10.77.0.[11-{10 + last}] CPUs=8 RealMemory=2000 Gres=gpu:1,shard:4
            PartitionName=DEFAULT Nodes=ALL OverSubscribe=FORCE:1 PreemptMode=OFF
            PartitionName=other Default=YES
            PartitionName=serving
            PartitionName=preempt
            PartitionName=train
            PartitionName=low PreemptMode=SUSPEND
            PartitionName=high PriorityTier=9
            """))
        (etc / "slurmdbd.conf").write_text(textwrap.dedent(f"""\
            AuthType=auth/munge
            DbdHost=controller
            SlurmUser=root
            StorageType=accounting_storage/mysql
            StorageHost=localhost
            StorageUser=root
            StorageLoc=slurm_acct_db
            LogFile={self.work}/log/slurmdbd
            PidFile=/run/slurmdbd.pid
            """))
        (etc / "slurmdbd.conf").chmod(0o600)
        (etc / "gres.conf").write_text("Name=gpu File=/dev/null\nName=shard Count=4 File=/dev/null\n")
        (etc / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={CGROUPS}\n")
        run("mount", "--bind", etc, "/etc/slurm")
        os.makedirs("/etc/sluice", exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", "/etc/sluice")
        shutil.copy(self.work / "slurm_roles", "/etc/sluice/slurm_roles")
        (self.work / "sluice.toml").write_text(DAEMON)
        (self.work / "state").mkdir()

    def start_controller(self):
        self.controller = self.service("slurmctld", "-D")
        wait_until(lambda: run("scontrol", "ping", check=False).returncode == 0, PATIENCE, "slurmctld")

    def start_accounting(self):
        """MariaDB and slurmdbd, with a QOS and the users' account."""
        data = self.work / "database"
        run("mariadb-install-db", "--user=root", f"--datadir={data}", "--auth-root-authentication-method=normal",
            "--skip-test-db")
        os.mkdir("/run/mysqld")
        self.service("mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", "--skip-networking",
                     "--socket=/run/mysqld/mysqld.sock", "--pid-file=/run/mysqld/pid", "--innodb-buffer-pool-size=32M",
                     "--innodb-lock-wait-timeout=900")
        wait_until(lambda: run("mariadb-admin", "--no-defaults", "ping", check=False).returncode == 0, PATIENCE, "MariaDB")
        self.service("slurmdbd", "-D")
        wait_until(lambda: run("sacctmgr", "-n", "show", "cluster", check=False).returncode == 0, PATIENCE, "slurmdbd")
        for line in ("cluster test", "qos preemptible", "account lab,spare", "user ann,bob account=lab,spare qos=normal,preemptible"):
            run("sacctmgr", "-i", "add", *line.split())

    def make_certificates(self):
        """An authority; etcd's certificate, which it also shows to itself as a client; one of the nodes; and one that the
        authority did not sign."""
        tls = self.work / "tls"
        tls.mkdir()
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
        run("openssl", "req", "-x509", *key, "-subj", "/CN=authority", "-keyout", tls / "ca.key", "-out", tls / "ca.pem")
        run("openssl", "req", "-x509", *key, "-subj", "/CN=client", "-keyout", tls / "stranger.key", "-out", tls / "stranger.pem")
        for name, usage in (("server", "serverAuth,clientAuth"), ("client", "clientAuth")):
            run("openssl", "req", *key[:-2], "-subj", f"/CN={name}", "-keyout", tls / f"{name}.key", "-out", tls / f"{name}.csr")
            (tls / "extensions").write_text(f"subjectAltName=IP:10.77.0.1,IP:127.0.0.1\nextendedKeyUsage={usage}\n")
            run("openssl", "x509", "-req", "-days", "2", "-in", tls / f"{name}.csr", "-CA", tls / "ca.pem", "-CAkey", tls / "ca.key",
                "-CAcreateserial", "-extfile", tls / "extensions", "-out", tls / f"{name}.pem")

    def start_etcd(self):
        tls = self.work / "tls"
        if not tls.exists():
            self.make_certificates()
        self.etcd = self.service("etcd", "--data-dir", "/run/etcd", "--listen-client-urls", "https://10.77.0.1:2379",
                                 "--advertise-client-urls", "https://10.77.0.1:2379", "--listen-peer-urls", "http://127.0.0.1:2380",
                                 "--cert-file", tls / "server.pem", "--key-file", tls / "server.key", "--client-cert-auth",
                                 "--trusted-ca-file", tls / "ca.pem", "--auto-compaction-mode", "periodic",
                                 "--auto-compaction-retention", "10m")
        wait_until(lambda: self.ask_etcd("maintenance/status").returncode == 0, PATIENCE, "etcd")

    def ask_etcd(self, what, certificate="client", **body):
        """A call of etcd's JSON interface. Without a certificate, etcd ends the connection."""
        tls = self.work / "tls"
        own = ("--cert", tls / f"{certificate}.pem", "--key", tls / f"{certificate}.key") if certificate else ()
        return run("curl", "-sS", "--fail", "--max-time", "5", "--cacert", tls / "ca.pem", *own, "-d", json.dumps(body),
                   f"https://10.77.0.1:2379/v3/{what}", check=False)

    def start_munge(self):
        user = pwd.getpwnam("munge")
        folder = self.work / "munge"
        folder.mkdir()
        os.mkdir("/run/munge")
        run("mount", "--bind", folder, "/run/munge")
        (folder / "key").write_bytes(secrets.token_bytes(1024))
        (folder / "key").chmod(0o400)
        for each in (folder, folder / "key"):
            os.chown(each, user.pw_uid, user.pw_gid)
        folder.chmod(0o755)
        self.service("setpriv", "--reuid", "munge", "--regid", "munge", "--clear-groups", "munged", "--foreground",
                     "--key-file", folder / "key", "--socket", "/run/munge/munge.socket.2", "--pid-file", folder / "pid",
                     "--log-file", folder / "log", "--seed-file", folder / "seed")
        wait_until((folder / "munge.socket.2").exists, PATIENCE, "munged")

    def service(self, *command):
        name = pathlib.Path(command[0]).name
        log = (self.work / "log" / f"{name}.out").open("a")
        self.services.append(subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        return self.services[-1]

    def stop(self):
        for node in self.nodes:
            node.process.kill()
        for each in (*(node.process for node in self.nodes), *self.services):
            each.kill()
            each.wait()


ROLES = """\
partition serving online
partition preempt offline
partition train offline across_nodes
partition low offline
comment sluice-offline offline
account spare offline
reservation night offline
"""
DAEMON = """\
[daemon]
mode = "enforce"
socket_group = "online"
jobs = "/var/lib/sluice/jobs"
record = "/var/lib/sluice/recording"
[roles]
gang_across_nodes = "slurm"
may_claim_offline = { users = ["bob"] }
environment = [{ when = "SLURM_JOB_QOS=preemptible", role = "offline" }]
[scheduler]
attach_after = "100ms"
max_suspend = "1min"
[policy]
name = "fixed_timeslice"
release = "client_done"
"""
