#!/usr/bin/env python3
"""usage: prometheus.py [--quick] --throwing PLUGIN --work DIR BIN_DIR   (as prometheus.sh calls it)

Runs Prometheus and Alertmanager on nodes with a simulated GPU each. Real faults fire every alert of alerts.yml, and the
alerts end when the faults do. All queries of the dashboard have an answer. Exit code 0: no case failed; 1: one did."""

import argparse
import concurrent.futures
import http.server
import json
import pathlib
import re
import subprocess
import sys
import threading
import time
import traceback
import urllib.parse
import urllib.request

import yaml

from cluster import GPU, PATIENCE, Failure, require, run, wait_until
from machines import METRICS_PORT, TOP, Fleet, Worker

OBSERVE = TOP / "adapters/observe"
# Times in the copy of the rules, so that the test does not take hours. Expressions and thresholds stay.
SHORTER = {"[15m]": "[10s]", "[1h]": "[10s]", "offset 1w": "offset 20s", "for: 5m": "for: 1s", "for: 10m": "for: 2s",
           "for: 1h": "for: 2s", "for: 1d": "for: 2s"}
# A node that is gone, or a query of all: 10 scrapes in the windows of 10 s.
SCRAPE = "1s"


class Watch:
    """Prometheus, Alertmanager, and what Alertmanager notifies."""

    def __init__(self, fleet):
        self.fleet, self.work = fleet, fleet.work
        self.processes, self.lock, self.states, self.notes = [], threading.Lock(), {}, {}

    def start(self):
        shipped = (OBSERVE / "alerts.yml").read_text(encoding="utf-8")
        run("promtool", "check", "rules", OBSERVE / "alerts.yml")
        rules = shipped
        for old, new in SHORTER.items():
            require(old in shipped, f"alerts.yml does not contain '{old}'; remove it from SHORTER")
            rules = rules.replace(old, new)
        left = re.findall(r"(?:\[|offset |for: )\d+[mhdw]\b", rules)
        require(not left, f"alerts.yml has times without a shorter form in SHORTER: {left}")
        (self.work / "rules.yml").write_text(rules)
        self.alerts = {rule["alert"] for group in yaml.safe_load(shipped)["groups"] for rule in group["rules"]}
        (self.work / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": SCRAPE},
            "rule_files": ["rules.yml"],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": ["127.0.0.1:9093"]}]}]},
            "scrape_configs": [{"job_name": "sluice", "static_configs": [
                {"targets": [f"{node.name}:{METRICS_PORT}" for node in self.fleet.nodes]}]}]}))
        run("promtool", "check", "config", self.work / "prometheus.yml")
        (self.work / "alertmanager.yml").write_text(json.dumps({
            "route": {"receiver": "test", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s",
                      "repeat_interval": "1h"},
            "receivers": [{"name": "test", "webhook_configs": [{"url": "http://127.0.0.1:9094/"}]}]}))
        run("amtool", "check-config", self.work / "alertmanager.yml")
        self.receive()
        self.run("prometheus-alertmanager", f"--config.file={self.work}/alertmanager.yml",
                 f"--storage.path={self.work}/alertmanager", "--web.listen-address=127.0.0.1:9093",
                 "--cluster.listen-address=")
        self.run("prometheus", f"--config.file={self.work}/prometheus.yml", f"--storage.tsdb.path={self.work}/tsdb",
                 "--web.listen-address=127.0.0.1:9090")
        wait_until(lambda: len(self.query("up == 1")) == len(self.fleet.nodes), PATIENCE, "a scrape of each node")

    def run(self, *command):
        log = (self.work / f"log.{command[0]}").open("w")
        self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def receive(self):
        """Serves the address to which Alertmanager sends its notifications."""
        watch = self

        class Receiver(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with watch.lock:
                    for each in body["alerts"]:
                        labels = each["labels"]
                        key = labels["alertname"], labels.get("instance", "").partition(":")[0]
                        watch.states.setdefault(key, {})[json.dumps(labels, sort_keys=True)] = each["status"]
                        watch.notes[key] = each["annotations"]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 9094), Receiver)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def query(self, text):
        try:
            with urllib.request.urlopen("http://127.0.0.1:9090/api/v1/query?"
                                        + urllib.parse.urlencode({"query": text}), timeout=10) as answer:
                return json.load(answer)["data"]["result"]
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                raise Failure(f"query '{text}': {error.read().decode()}") from error
            return []  # It is starting.

    def is_firing(self, alert, node):
        with self.lock:
            return "firing" in self.states.get((alert, node.name), {}).values()

    def firing(self):
        with self.lock:
            return sorted(f"{alert} of {name}" for (alert, name), states in self.states.items()
                          if "firing" in states.values())

    def note(self, alert, node):
        with self.lock:
            return self.notes[(alert, node.name)]["summary"]

    def stop(self):
        for each in self.processes:
            each.kill()
            each.wait()


class Bed:
    """A node, its online client, and the alerts that have fired on it."""

    def __init__(self, watch, node):
        self.watch, self.node, self.fired = watch, node, set()
        self.worker = None

    def prepare(self, **configuration):
        self.node.configure(**configuration)
        self.node.start_daemon()

    def occupy(self):
        """An offline program, and a client that has held it once."""
        self.node.offline()
        self.worker = Worker(self.node)
        self.node.wait_offline("running")
        self.hold_once()

    def hold_once(self):
        self.worker.do("client.begin()")
        self.node.wait_offline("suspended")
        self.worker.do("client.end()")
        self.node.wait_offline("running")

    def expect(self, *alerts):
        for each in alerts:
            wait_until(lambda each=each: self.watch.is_firing(each, self.node), PATIENCE, f"{self.node.name}: alert {each}")
            summary = self.watch.note(each, self.node)
            require("<no value>" not in summary and self.node.name in summary, f"summary of {each}: {summary}")

    def expect_end(self, *alerts):
        for each in alerts:
            wait_until(lambda each=each: not self.watch.is_firing(each, self.node), PATIENCE,
                       f"{self.node.name}: end of alert {each}")
        self.fired |= set(alerts)
        print(f"    {self.node.name}: {', '.join(alerts)}: fired and ended", flush=True)

    def counter(self, name):
        """Waits until Prometheus has a metric, so that increase() sees its rise."""
        found = wait_until(lambda: self.watch.query(f'{name}{{instance="{self.node.name}:{METRICS_PORT}"}}'), PATIENCE,
                           f"{self.node.name}: {name}")
        return sum(float(each["value"][1]) for each in found)


# The faults, by node. Each one names its alerts, and mends what it broke.


def agent_killed(bed):
    bed.counter("sluice_backend_restarts_total")
    agent = int(bed.node.inside("sed", "-n", "2s/ .*//p", "/run/sluice/owner").stdout)
    bed.node.inside("kill", "-KILL", agent)
    bed.expect("SluiceAgentRestarted")
    bed.expect_end("SluiceAgentRestarted")
    bed.hold_once()


def preemption_fails(bed):
    bed.counter("sluice_breaker_opens_total")
    gpu = bed.node.status()["gpus"][0]["gpu_id"]
    bed.node.device(f"fail-cycle {gpu} 20ms goes-on")
    bed.worker.do("client.begin()")
    bed.expect("SluiceBreakerOpen", "SluiceBreakerOpened", "SluiceQueuesFailed")
    bed.worker.do("client.end()")
    bed.node.sluice("breaker", "rearm", "--all")
    bed.expect_end("SluiceBreakerOpen", "SluiceBreakerOpened", "SluiceQueuesFailed")
    bed.hold_once()


def stuck_driver(bed):
    """A suspend that does not come back opens the breaker, until an operator closes it."""
    bed.node.device("delay DBG_TRAP:SUSPEND_QUEUES 5s")
    bed.worker.do("client.begin()")
    bed.expect("SluiceBreakerOpen", "SluiceBreakerOpened")
    bed.worker.do("client.end()")
    wait_until(lambda: bed.node.sluice("breaker", "rearm", "--all", check=False).returncode == 0
               and not bed.node.status()["gpus"][0]["breaker_open"], PATIENCE, f"{bed.node.name}: closed breaker")
    bed.expect_end("SluiceBreakerOpen", "SluiceBreakerOpened")
    bed.hold_once()


def broken_policy(bed):
    bed.counter("sluice_policy_ejections_total")
    bed.node.reload(policy=f'plugin = "{bed.watch.throwing}"\n')
    bed.worker.do("serve(3, 0.01)")
    bed.expect("SluicePolicyRemoved")
    bed.node.reload()
    bed.expect_end("SluicePolicyRemoved")
    bed.hold_once()


def target_missed(bed):
    """Requests take longer than the target, because their server became slow."""
    bed.node.reload(policy='name = "slo"\nrequest.p99 = "100ms"\n')
    bed.counter("sluice_span_target_seconds")
    bed.worker.do("serve(100, 0.01)")
    require(not bed.watch.is_firing("SluiceTargetMissed", bed.node), "the target is missed before the fault")
    wait_until(lambda: bed.node.status()["spans"][0]["kept"] is True, PATIENCE, "a kept target in status")
    bed.worker.do("serve(40, 0.15)")
    bed.expect("SluiceTargetMissed")
    require(bed.node.status()["spans"][0]["kept"] is False, "status does not say that the target is missed")
    bed.worker.do("serve(100, 0.01)")
    bed.expect_end("SluiceTargetMissed")
    bed.node.reload()


def held_without_work(bed):
    """A slice that is much too long holds offline work for a minute after each request."""
    bed.node.reload(policy='name = "fixed_timeslice"\nslice = "1min"\n', scheduler='max_suspend = "1min"\noffline_floor = 0\n')
    bed.worker.do("serve(1, 0.01)")
    bed.expect("SluiceSuspendedForNothing")
    bed.node.reload()
    bed.expect_end("SluiceSuspendedForNothing")


def limits_share(bed):
    """Online work that never pauses."""
    bed.node.reload(scheduler='max_suspend = "300ms"\nmin_run = "100ms"\n')
    bed.worker.do("client.begin()")
    bed.expect("SluiceLimitsShareTheGpu")
    bed.worker.do("client.end()")
    bed.expect_end("SluiceLimitsShareTheGpu")
    bed.node.reload()


def work_without_end(bed):
    bed.counter("sluice_expired_begins_total")
    bed.node.reload(scheduler='max_busy = "500ms"\n')
    bed.worker.do("client.begin()")
    bed.expect("SluiceWorkNeverEnded")
    bed.worker.do("client.end()")
    bed.expect_end("SluiceWorkNeverEnded")
    bed.node.reload()


def stray_mark(bed):
    bed.counter("sluice_stray_ends_total")
    bed.worker.do('client.end_span("request", 4711)')
    bed.worker.do("serve(1, 0.01)")
    bed.expect("SluiceMarksIncomplete")
    bed.expect_end("SluiceMarksIncomplete")


def corrupt_client(bed):
    """A client that writes into its shared page what cannot be."""
    bed.counter("sluice_clients_thrown_out_total")
    other = Worker(bed.node)
    other.do("corrupt_page()")
    bed.expect("SluiceClientThrownOut")
    other.end()
    bed.expect_end("SluiceClientThrownOut")


def traced_target(bed):
    """strace traces an offline program before sluice attaches."""
    bed.counter("sluice_attach_failures_total")
    bed.node.offline(before="strace -f -o /dev/null")
    bed.expect("SluiceAttachFailed")
    bed.node.inside("sh", "-c", "kill -INT $(pidof strace)")
    bed.expect_end("SluiceAttachFailed")


def slower_driver(bed):
    """Suspends take ten times as long as before."""
    for _ in range(4):
        bed.worker.do("serve(40, 0.02, 0.13)")
    bed.node.device("delay DBG_TRAP:SUSPEND_QUEUES 60ms times=1000")
    for _ in range(2):
        bed.worker.do("serve(20, 0.15, 0.13)")
    bed.expect("SluicePreemptionSlower", "SluiceDriverCallsSlower")
    bed.node.device("no-faults")
    bed.expect_end("SluicePreemptionSlower", "SluiceDriverCallsSlower")


def refused_reservation(bed):
    bed.node.reload(policy='name = "hqd_reservation"\n')
    bed.counter("sluice_failed_reservations_total")
    bed.node.device("answer SET_HQD_RESERVATION EINVAL times=1000")
    bed.node.reload(policy='name = "hqd_reservation"\noffline_percent = 40\n')
    bed.expect("SluiceReservationFailed")
    bed.node.device("no-faults")
    bed.node.reload()
    bed.expect_end("SluiceReservationFailed")
    bed.hold_once()


def failed_batch_command(bed):
    bed.counter("sluice_mechanism_fallbacks_total")
    bed.node.device("answer BATCH_UNMAP_QUEUES EIO")
    bed.hold_once()
    bed.expect("SluiceMechanismFellBack")
    bed.expect_end("SluiceMechanismFellBack")


def refused_quantum(bed):
    bed.counter("sluice_failed_quanta_total")
    bed.node.device("answer SET_TIMESLICE INVALID_ARGUMENT times=1000")
    bed.node.reload(policy='name = "fixed_timeslice"\nrelease = "client_done"\noffline_quantum = "50us"\n')
    bed.expect("SluiceQuantumFailed")
    bed.node.device("no-faults")
    bed.node.reload()
    bed.expect_end("SluiceQuantumFailed")


def gangs_not_started(bed):
    """The daemon waits for sluice-gangs; that runs, then, without an etcd that answers."""
    roles = 'gang_across_nodes = "slurm"\n'
    bed.node.configure(roles=roles)
    bed.node.start_daemon()
    bed.expect("SluiceGangsNotConnected")
    bed.node.reload()
    bed.expect_end("SluiceGangsNotConnected")
    bed.node.reload(roles=roles)
    bed.expect("SluiceGangsNotConnected")
    key, certificate = (bed.node.folder / f"gangs.{kind}" for kind in ("key", "pem"))
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1", "-subj",
        "/CN=node", "-keyout", key, "-out", certificate)
    bed.node.order(f"{bed.node.cluster.bin}/sluice-gangs --etcd https://127.0.0.1:1 --cluster test --ca {certificate} --cert "
                   f"{certificate} --key {key} < /dev/null >> {bed.node.folder}/log/gangs 2>&1 &")
    bed.expect_end("SluiceGangsNotConnected")


def forgotten_pause(bed):
    bed.node.inside("touch", "/run/sluice/disabled")
    bed.expect("SluicePausedForLong")
    bed.node.sluice("unpause")
    bed.expect_end("SluicePausedForLong")


def daemon_killed(bed):
    bed.node.inside("kill", "-KILL", bed.node.daemon_pid())
    bed.expect("SluiceNotRunning")
    bed.node.start_daemon()
    bed.expect_end("SluiceNotRunning")


def starved_scheduler(bed):
    """The scheduler's thread stands still while programs start: its inbox overflows, and it reads everything anew."""
    bed.node.configure(scheduler="inbox_capacity = 16\n")
    bed.node.start_daemon()
    bed.counter("sluice_inbox_overflows_total")
    daemon = bed.node.daemon_pid()
    named = bed.node.inside("sh", "-c", f"grep -lx sluice-node /proc/{daemon}/task/*/comm").stdout.split()
    thread = min(int(each.split("/")[4]) for each in named)  # Threads that it starts inherit the name.
    bed.node.order(f"strace -o /dev/null -p {thread} -e trace=io_uring_enter,epoll_wait "
                   "-e inject=io_uring_enter,epoll_wait:delay_enter=10s:when=1 &")
    wait_until(lambda: "TracerPid:\t0" not in bed.node.inside("cat", f"/proc/{thread}/status").stdout, PATIENCE, "strace")
    count = 20
    bed.node.order(f"for i in $(seq {count}); do AMD_QUEUE_TAG=OFFLINE_AI {bed.node.cluster.bin}/offline_demo < /dev/null "
                   "> /dev/null 2>&1 & done")
    bed.expect("SluiceObservationsLost")
    bed.node.inside("sh", "-c", "kill -INT $(pidof strace)")
    # Also the one that occupy() started.
    wait_until(lambda: len(bed.node.groups_of("offline")) == 1 + count, PATIENCE, f"{bed.node.name}: every program in status")
    bed.node.inside("pkill", "-x", "offline_demo")
    bed.expect_end("SluiceObservationsLost")


def driver_unloaded(bed):
    """The last one on its node: the simulated device goes with the programs that use it."""
    bed.node.inside("sh", "-c", "kill $(pidof sluice-sim)")
    bed.expect("SluiceDriverGone")
    bed.node.order(f"{bed.node.cluster.bin}/sluice-sim --root {GPU} --profile {bed.node.profile} >> {bed.node.folder}/log/sim 2>&1 &")
    wait_until(lambda: bed.node.inside("test", "-e", f"{GPU}/sim/control", check=False).returncode == 0, PATIENCE,
               f"{bed.node.name}: simulated GPU")
    bed.node.start_daemon()
    bed.expect_end("SluiceDriverGone")


# By node: the simulated device, and the faults in their order.
NODES = [("mi300x", (agent_killed, preemption_fails, target_missed, broken_policy, daemon_killed,
                     starved_scheduler)),
         ("mi300x", (stuck_driver, held_without_work, limits_share, work_without_end, stray_mark, corrupt_client,
                     traced_target, forgotten_pause)),
         ("mi300x-batch", (refused_reservation, failed_batch_command, slower_driver)),
         ("h100", (refused_quantum, gangs_not_started, driver_unloaded))]
QUICK = [("mi300x", (agent_killed, preemption_fails)), ("mi300x", (target_missed, daemon_killed))]


def dashboard(watch):
    """Each query of the dashboard has an answer: of each node where it groups by node, and not only NaN."""
    count = len(watch.fleet.nodes)
    panels = json.loads((OBSERVE / "grafana.json").read_text(encoding="utf-8"))["panels"]
    queries = [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", ())]
    require(len(queries) > 20, "the dashboard has few queries")
    wrong = []
    for title, text in queries:
        found = watch.query(text.replace("$instance", ".*").replace("$__rate_interval", "10s"))
        instances = {each["metric"].get("instance") for each in found}
        grouped = any("instance" in each for each in re.findall(r" by \(([^)]*)\)", text)) or not re.search("sum|count", text)
        numbers = [each for each in found if each["value"][1] != "NaN"]
        if not numbers or (grouped and len(instances) != count):
            wrong.append(f"{title}: {text}: {len(found)} series, of {len(instances)} nodes, {len(numbers)} numbers")
    require(not wrong, "the dashboard's queries without an answer:\n" + "\n".join(wrong))
    print(f"=== dashboard: {len(queries)} queries, each with an answer", flush=True)


def calm(watch, beds):
    """While all is well, no alert fires, and the dashboard shows every node."""
    for bed in beds:
        bed.worker.start("serve(80, 0.02, 0.1)")
    time.sleep(8)  # Eight scrapes of work as usual.
    dashboard(watch)
    for bed in beds:
        bed.worker.expect("done")
    require(not watch.firing(), f"alerts while all is well: {watch.firing()}")


def break_and_mend(bed, faults):
    failed = []
    for fault in faults:
        began, why = time.monotonic(), ""
        try:
            fault(bed)
        except Exception as error:  # One fault; the others go on.
            why = f": {error if isinstance(error, Failure) else traceback.format_exc()}"
            failed.append(fault.__name__)
        print(f"=== {bed.node.name}: {fault.__name__}: {'FAILED' if why else 'passed'} after "
              f"{time.monotonic() - began:.1f} s{why}", flush=True)
    return failed


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--throwing", required=True, help="a policy plugin that throws")
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("bin")
    chosen = parser.parse_args()
    plan = QUICK if chosen.quick else NODES
    fleet = Fleet(chosen.bin, chosen.work)
    watch, failed = Watch(fleet), []
    watch.throwing = chosen.throwing
    began = time.monotonic()
    try:
        fleet.start([profile for profile, _ in plan])
        beds = [Bed(watch, node) for node in fleet.nodes]
        for bed in beds:
            bed.prepare()
        watch.start()
        for bed in beds:
            bed.occupy()
        print(f"=== {len(beds)} nodes, Prometheus and Alertmanager: {time.monotonic() - began:.1f} s", flush=True)
        calm(watch, beds)
        with concurrent.futures.ThreadPoolExecutor(len(beds)) as threads:
            for each in threads.map(break_and_mend, beds, [faults for _, faults in plan]):
                failed += each
        fired = set().union(*(bed.fired for bed in beds))
        if not chosen.quick and not failed:
            require(fired == watch.alerts, f"no fault fires {watch.alerts - fired}")
        if not failed:
            wait_until(lambda: not watch.firing(), PATIENCE, f"the end of all alerts, such as {watch.firing()}")
        print(f"=== {len(fired)} of {len(watch.alerts)} alerts fired and ended: {time.monotonic() - began:.1f} s", flush=True)
    except Exception as error:
        failed.append("start")
        print(f"=== FAILED: {error if isinstance(error, Failure) else traceback.format_exc()}")
    finally:
        if failed:
            for each in sorted((*chosen.work.rglob("log/*"), *chosen.work.glob("log.*"))):
                if each.is_file():
                    print(f"==> {each}\n{each.read_text(errors='replace')[-3000:]}")
        watch.stop()
        fleet.stop()
    return 1 if failed else 0


sys.exit(main())
