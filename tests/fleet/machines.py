"""Nodes on this machine without a batch system: namespaces with a simulated GPU, a daemon of sluice and sshd.
A program that uses it must run in its own mount, network, process and host name namespaces: own_namespaces.sh."""

import os
import pathlib
import subprocess
import textwrap

import cluster
from cluster import DEVICE, GPU, PATIENCE, Failure, run, wait_until

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parents[1]
METRICS_PORT = 9464


class Worker:
    """A client of a node's daemon. It does what lines of Python say, with `client` in scope."""

    def __init__(self, node):
        self.process = subprocess.Popen(
            ["nsenter", "-t", str(node.pid), "--all", "--", "python3", "-B", HERE / "worker.py"], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(node.folder / "log/worker").open("a"),
            env={**os.environ, **DEVICE, "PYTHONPATH": str(TOP / "adapters/client/python"),
                 "SLUICE_CLIENT_LIBRARY": str(node.cluster.bin.parent / "lib/libsluice_client.so.0")})
        self.expect("connected")

    def expect(self, word):
        line = self.process.stdout.readline().strip()
        if line != word:
            raise Failure(f"worker.py: '{line}' instead of '{word}'")

    def do(self, line):
        self.start(line)
        self.expect("done")

    def start(self, line):
        """Does not wait for the end; the next line waits."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


class Node(cluster.Node):
    """A node. Its daemon starts by the command restart-sluice, also over ssh."""

    def __init__(self, fleet, number, profile):
        self.profile, self.jobs = profile, 0
        super().__init__(fleet, number)

    def groups(self):
        return []

    def setup(self):
        etc = self.folder / "etc"
        etc.mkdir()
        restart = self.folder / "restart-sluice"
        restart.write_text(textwrap.dedent(f"""\
            #!/bin/sh
            # What `systemctl restart sluice` does where there is systemd.
            pid=$(cat /run/sluice.pid 2>/dev/null) && kill "$pid" 2>/dev/null
            while [ -n "$pid" ] && [ -e "/proc/$pid" ]; do sleep 0.02; done
            setsid sluice run --config /etc/sluice/sluice.toml </dev/null >>{self.folder}/log/daemon 2>&1 &
            echo $! >/run/sluice.pid
            """))
        restart.chmod(0o755)
        return textwrap.dedent(f"""\
            mount -t tmpfs tmpfs /run
            mkdir -p /run/sshd /run/lock
            mount -t tmpfs tmpfs /usr/local/sbin
            ln -s {self.cluster.bin}/sluice {restart} /usr/local/sbin/
            mount --bind {etc} /etc/sluice
            mount --bind {self.folder}/state /var/lib/sluice
            """)

    def start(self):
        super().start()
        self.order(f"/usr/sbin/sshd -D -e -f {self.cluster.work}/sshd_config < /dev/null >> {self.folder}/log/sshd 2>&1 &")

    def configure(self, policy="", scheduler="", daemon="", mode="enforce", roles=""):
        """Writes the daemon's configuration."""
        (self.folder / "etc/sluice.toml").write_text(textwrap.dedent(f"""\
            [daemon]
            mode = "{mode}"
            metrics = "{self.address}:{METRICS_PORT}"
            jobs = ""
            """) + daemon + '\n[scheduler]\nattach_after = "100ms"\n' + scheduler + "\n[policy]\n"
            + (policy or 'name = "fixed_timeslice"\nrelease = "client_done"\n') + "\n[roles]\n" + roles)

    def daemon_pid(self):
        return int(self.inside("cat", "/run/sluice.pid").stdout)

    def start_daemon(self):
        self.inside("restart-sluice")
        self.wait_daemon()

    def wait_daemon(self):
        wait_until(lambda: self.sluice("status", "--json", check=False).returncode == 0, PATIENCE, f"{self.name}: daemon")

    def reload(self, **what):
        self.configure(**what)
        self.sluice("check", "/etc/sluice/sluice.toml")
        self.inside("kill", "-HUP", self.daemon_pid())

    def device(self, order):
        """A fault of the simulated device."""
        self.inside("sh", "-c", f"echo '{order}' > {GPU}/sim/control")

    def offline(self, before=""):
        """Starts an offline program, and returns its pid on the node."""
        self.jobs += 1
        self.order(f"AMD_QUEUE_TAG=OFFLINE_AI {before} {self.cluster.bin}/offline_demo < /dev/null "
                   f"> {self.folder}/log/offline.{self.jobs} 2>&1 & echo $! > /run/job.{self.jobs}")
        path = f"/run/job.{self.jobs}"
        return int(wait_until(lambda: self.inside("cat", path, check=False).stdout.strip(), PATIENCE, path))

    def groups_of(self, role):
        return [each for each in self.status()["groups"] if each["role"] == role]

    def wait_offline(self, state, count=1):
        wait_until(lambda: [each["state"] for each in self.groups_of("offline") if each["manageable"]].count(state) == count,
                   PATIENCE, f"{self.name}: {count} offline group {state}")


class Fleet:
    """Nodes, and what reaches them: a network, names, and ssh with keys and a configuration of its own."""

    def __init__(self, bin_folder, work):
        self.bin, self.work = pathlib.Path(bin_folder).resolve(), work
        self.nodes = []

    def start(self, profiles):
        run("mount", "--make-rprivate", "/")
        run("mount", "-t", "tmpfs", "tmpfs", "/run")
        os.makedirs("/etc/sluice", exist_ok=True)
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "bridge0", "type", "bridge")
        run("ip", "address", "add", "10.77.0.1/24", "dev", "bridge0")
        run("ip", "link", "set", "bridge0", "up")
        os.makedirs("/var/lib/sluice", exist_ok=True)
        (self.work / "hosts").write_text("127.0.0.1 localhost\n" + "".join(
            f"10.77.0.{10 + number} node{number}\n" for number in range(1, len(profiles) + 1)))
        run("mount", "--bind", self.work / "hosts", "/etc/hosts")
        self.prepare_ssh()
        for number, profile in enumerate(profiles, 1):
            self.nodes.append(Node(self, number, profile))
        for node in self.nodes:
            wait_until(lambda node=node: self.ssh(node.name, "true", check=False).returncode == 0, PATIENCE,
                       f"{node.name}: sshd")

    def prepare_ssh(self):
        for name in ("host_key", "user_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.work / name)
        # root's account may be locked, and then sshd refuses all of its keys. Its .bashrc may do anything.
        for name, field, value in (("shadow", 1, "*"), ("passwd", 5, "/run")):
            lines = [line.split(":") for line in pathlib.Path("/etc", name).read_text(encoding="utf-8").splitlines()]
            next(line for line in lines if line[0] == "root")[field] = value
            (self.work / name).write_text("".join(":".join(line) + "\n" for line in lines))
            (self.work / name).chmod(0o600 if name == "shadow" else 0o644)
            run("mount", "--bind", self.work / name, f"/etc/{name}")
        (self.work / "sshd_config").write_text(textwrap.dedent(f"""\
            HostKey {self.work}/host_key
            AuthorizedKeysFile {self.work}/user_key.pub
            StrictModes no
            UsePAM no
            PidFile none
            PermitRootLogin prohibit-password
            MaxStartups 100
            SetEnv {' '.join(f'{name}={value}' for name, value in DEVICE.items())}
            """))
        host = (self.work / "host_key.pub").read_text()
        (self.work / "known_hosts").write_text(f"node* {host}")
        (self.work / "ssh_config").write_text(textwrap.dedent(f"""\
            Host *
              User root
              IdentityFile {self.work}/user_key
              IdentitiesOnly yes
              UserKnownHostsFile {self.work}/known_hosts
              StrictHostKeyChecking yes
            """))
        self.ssh_command = f"ssh -F {self.work}/ssh_config"

    def ssh(self, name, *command, **how):
        return run(*self.ssh_command.split(), "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", name, *command, **how)

    def sluice(self, *arguments, **how):
        return run(self.bin / "sluice", *arguments, **how)

    def stop(self):
        for node in self.nodes:
            node.process.kill()
            node.process.wait()
