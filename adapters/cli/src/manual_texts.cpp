#include "manual_texts.hpp"

namespace sluice::cli {

namespace {

constexpr std::string_view columns_of_status =
    R"(  SLOTS            Hardware slots for compute queues, as listed in the
                   driver's topology. 'sluice hqds' counts the slots of
                   every XCC.
  ONLINE, OFFLINE  Compute queues of online and of offline processes.
  OFF              Suspended queues, as confirmed by the driver. For a
                   group: suspended queues / all compute queues.
  BACKLOG          Busy periods that clients have begun and not ended. A
                   '+' means that packets wait in online queues, and a
                   '?' that the end of online work is not visible. Only
                   looks at online work detect this.
  BUSY%            Share of the last minute in which online work was in
                   flight on the GPU.
  OFF%             Share of the last minute in which offline work was
                   suspended.
  VRAM             GPU memory in use / total GPU memory.
  STATE            For a GPU: online (online work is in flight), free, or
                   BREAKER (its breaker is open). For a group: running,
                   held, unmanaged (sluice cannot suspend the group),
                   forced (a limit forces the group to run), or the state
                   of its queues.
  GPU TIME         For an offline group, -TIME: the group was suspended
                   for this time. For an online group, +TIME: offline work
                   on its GPUs was suspended for this time while online
                   work was in flight.

In mode observe, the values show what the daemon would have done.
)";

constexpr added_section all_sections[] = {
    {"sluice", "EXAMPLES",
     R"(Check whether preemption works on this node, and list the processes that use its GPUs:
  sluice doctor
  sluice queues

Suspend the queues of process 4242 for two seconds:
  sluice suspend 4242 --for 2s

Show the state of the node, and the reason why process 4242 is suspended:
  sluice status
  sluice why 4242

Resume everything on the node immediately:
  sluice pause --why "maintenance of the node"
)"},
    {"sluice-queues", "EXAMPLES", R"(List processes with the roles that the daemon's rules assign:
  sluice queues --config /etc/sluice/sluice.toml

List the queue ids of one process:
  sluice queues --pid 4242 --type compute
)"},
    {"sluice-hqds", "EXAMPLES", R"(Show the slots of the first GPU every half second:
  sluice hqds --gpu 0 --watch 500ms
)"},
    {"sluice-role", "EXAMPLES",
     R"(Set the role of process 4242 to online, and the role of all Slurm jobs to offline:
  sluice role set --pid 4242 online
  sluice role set --cgroup '/system.slice/slurmstepd.scope/job_*' offline
  sluice role list
)"},
    {"sluice-suspend", "EXAMPLES", R"(Suspend two queues of process 4242 until Ctrl-C:
  sluice suspend 4242 3 5

Suspend all compute queues of process 4242 for 200 ms:
  sluice suspend 4242 --for 200ms
)"},
    {"sluice-release", "EXAMPLES",
     R"(Release a process from its scheduler, debug the process with gdb, and end the release:
  sluice release 4242 --for 30min
  gdb -p 4242
  sluice release 4242 --end
)"},
    {"sluice-breaker", "EXAMPLES",
     R"(Re-arm the breaker of a GPU when dmesg shows that the GPU works again:
  sluice breaker list
  sluice breaker rearm 51110
)"},
    {"sluice-run", "EXAMPLES",
     R"(Run in mode observe, regardless of the configuration, and write a timeline:
  sluice run --config /etc/sluice/sluice.toml --mode observe --trace-out trace.json

Run as a service:
  systemctl enable --now sluice
)"},
    {"sluice-check", "EXAMPLES", R"(Check a configuration before the daemon reloads it:
  sluice check /etc/sluice/sluice.toml
  systemctl reload sluice
)"},
    {"sluice-status", "COLUMNS", columns_of_status},
    {"sluice-status", "EXAMPLES",
     R"(Print the durations of suspends and resumes, and the numbers of failures, for a script:
  sluice status --json | jq .statistics
)"},
    {"sluice-top", "KEYS", R"(  q, Ctrl-C  Quit.
  f          Filter groups by number (g7), pid, command, role or state.
  s          Sort by role, time off, state or name.
  p          Pause the node (everything runs), or end the pause. The
             program asks for confirmation.
  P          Switch the policy: NAME or NAME:KEY=VALUE,...
  ?          Show or hide the list of keys.
)"},
    {"sluice-top", "COLUMNS", columns_of_status},
    {"sluice-top", "EXAMPLES", R"(Write one page that lists the offline groups to a file:
  sluice top --once --filter offline >page
)"},
    {"sluice-why", "EXAMPLES",
     R"(Explain the state of process 4242, and of the group that 'sluice status' shows as g1:
  sluice why 4242
  sluice why g1
)"},
    {"sluice-pause", "EXAMPLES", R"(Pause the node after a reset, and later end the pause:
  sluice pause --why "dmesg reports a reset"
  sluice unpause
)"},
    {"sluice-rescue", "EXAMPLES",
     R"(Resume what was left suspended by a daemon with its own directory:
  sluice rescue --directory /srv/sluice
)"},
    {"sluice-jobs", "EXAMPLES",
     R"(Show the jobs of the last week, if the configuration has jobs = "/var/log/sluice/jobs":
  sluice jobs --since 168h

By default the daemon writes job lines to its log. Read the job lines from the log:
  journalctl -u sluice | sluice jobs -
)"},
    {"sluice-fleet", "EXAMPLES", R"(Show three nodes, and those that a file names:
  sluice fleet status gpu-1 gpu-2 gpu-3
  sluice fleet status --nodes /etc/sluice/nodes --timeout 5s
)"},
    {"sluice-policy", "EXAMPLES",
     R"(List the policies, show the parameters of policy slo, and switch the daemon's policy:
  sluice policy
  sluice policy slo
  sluice policy fixed_timeslice:slice=5ms --use
)"},
    {"sluice-sim", "EXAMPLES",
     R"(Simulate two GPUs of the MES generation, with their files in /tmp/gpu, until Ctrl-C:
  sluice sim --root /tmp/gpu --profile gfx1100 --gpus 2
)"},
    {"sluice-lab", "EXAMPLES", R"(Compare two policies at two loads, and write an HTML report:
  sluice lab --policy fixed_timeslice --policy fair_share --load 0.3,0.6 --report page.html

Find the length of offline kernels above which suspending shortens online p99:
  sluice lab --sweep --report sweep.html
)"},
    {"sluice-replay", "EXAMPLES",
     R"(Replay a recording with a time slice of 2 ms:
  sluice replay node.rec --policy fixed_timeslice:slice=2ms
)"},
    {"sluice-analyze", "EXAMPLES",
     R"(Compare a program's run alone with its run beside other programs. Set AMD_LOG_LEVEL=5 and
AMD_LOG_LEVEL_FILE for both runs:
  sluice analyze alone.log shared.log
)"},
    {"sluice-accept", "EXAMPLES",
     R"(List the steps with their risks, and then run the steps with 20 measurements per call:
  sluice accept --list
  sluice accept --repeat 20 --report accept.md
)"},
    {"sluice.toml", "DESCRIPTION",
     R"(This TOML file configures the daemon ('sluice run') and its agent. It has four tables:

  [daemon]     the mode, and the paths of files and sockets
  [scheduler]  the limits for every policy
  [policy]     the policy and its parameters
  [roles]      the rules that assign roles to processes

Every key has a default, so an empty file is valid. With the defaults the daemon only observes.
Most nodes need only these two keys:

  [daemon]
  mode = "enforce"
  [roles]
  may_claim_offline = { users = ["*"] }

Durations are strings with a unit ("200us", "2s"). If a key is unknown or out of range, the daemon
reports the error with its line and does not start. 'sluice check FILE' reports the same errors in
advance. SIGHUP ('systemctl reload sluice') reloads the file. If the new file has an error, the
daemon keeps all previous settings.
)"},
    {"sluice.toml", "FILES",
     R"(  /etc/sluice/sluice.toml  Configuration of the service and its agent. The file must
                           belong to root.
)"},
};

}  // namespace

std::span<const added_section> added_sections() { return all_sections; }

}  // namespace sluice::cli
