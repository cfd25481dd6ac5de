#include "manual_texts.hpp"

namespace sluice::cli {

namespace {

constexpr std::string_view columns_of_status =
    R"(  SLOTS            compute queues that the hardware takes at a time, as
                   the topology says; 'sluice hqds' counts all dies'
  ONLINE, OFFLINE  compute queues of such processes
  OFF              suspended queues, as far as the driver has answered;
                   of a group: of all its compute queues
  BACKLOG          busy periods of clients in flight; +: packets wait in
                   online queues, where pointers are looked at
  BUSY%, OFF%      share of the last minute in which online work was in
                   flight there; in which offline work was off
  VRAM             used and there
  STATE            of a GPU: online (work is in flight), free, BREAKER (is
                   open); of a group: held, to be off, unmanaged (cannot
                   be held), forced (a limit makes it run)
  GPU TIME         -: for which an offline group was off; +: for which
                   offline work was off while online work was in flight
                   on this group's GPUs

Of a daemon that observes, all of that is what it would have done.
)";

constexpr added_section all_sections[] = {
    {"sluice", "EXAMPLES", R"(Can preemption work here, and who uses the GPUs?
  sluice doctor
  sluice queues
Take process 4242 off its GPUs for two seconds:
  sluice suspend 4242 --for 2s
What does the daemon do, and why does process 4242 stand still?
  sluice status
  sluice why 4242
Make everything on the node run, at once:
  sluice pause --why "node is being looked at"
)"},
    {"sluice-queues", "EXAMPLES", R"(Online and offline processes by the daemon's own rules:
  sluice queues --config /etc/sluice/sluice.toml
The queue ids of one process:
  sluice queues --pid 4242 --type compute
)"},
    {"sluice-hqds", "EXAMPLES", R"(The slots of the first GPU, every half second:
  sluice hqds --gpu 0 --watch 500ms
)"},
    {"sluice-role", "EXAMPLES",
     R"(Process 4242 is online until it ends, all of Slurm's jobs are offline:
  sluice role set --pid 4242 online
  sluice role set --cgroup '/system.slice/slurmstepd.scope/job_*' offline
  sluice role list
)"},
    {"sluice-suspend", "EXAMPLES", R"(Two queues of process 4242, until Ctrl-C:
  sluice suspend 4242 3 5
All of its compute queues, for 200 ms:
  sluice suspend 4242 --for 200ms
)"},
    {"sluice-release", "EXAMPLES",
     R"(Attach gdb to a process that a scheduler manages, and give it back:
  sluice release 4242 --for 30min
  gdb -p 4242
  sluice release 4242 --end
)"},
    {"sluice-breaker", "EXAMPLES", R"(After dmesg has shown that the GPU works again:
  sluice breaker list
  sluice breaker rearm 51110
)"},
    {"sluice-run", "EXAMPLES", R"(Only look, whatever the configuration says, and draw a timeline:
  sluice run --config /etc/sluice/sluice.toml --mode observe --trace-out trace.json
As a service:
  systemctl enable --now sluice
)"},
    {"sluice-check", "EXAMPLES", R"(Before the daemon is told to read it:
  sluice check /etc/sluice/sluice.toml
  systemctl reload sluice
)"},
    {"sluice-status", "COLUMNS", columns_of_status},
    {"sluice-status", "EXAMPLES",
     R"(How long did suspends and resumes take, and what failed, for a script:
  sluice status --json | jq .statistics
)"},
    {"sluice-top", "KEYS", R"(  q, Ctrl-C  end
  f          show groups by number (g7), pid, command, role or state
  s          sort by role, time off, state, name
  p          pause the node (everything runs), or end the pause; asks first
  P          switch the policy: NAME or NAME:KEY=VALUE,...
  ?          show the keys, and back
)"},
    {"sluice-top", "COLUMNS", columns_of_status},
    {"sluice-top", "EXAMPLES", R"(One page of what is offline, into a file:
  sluice top --once --filter offline >page
)"},
    {"sluice-why", "EXAMPLES", R"(A process, and the group g1 of 'sluice status':
  sluice why 4242
  sluice why g1
)"},
    {"sluice-pause", "EXAMPLES", R"(  sluice pause --why "dmesg tells of a reset"
  sluice unpause
)"},
    {"sluice-jobs", "EXAMPLES",
     R"(The jobs of a week, from the file of a daemon with jobs = "/var/log/sluice/jobs":
  sluice jobs --since 168h
By default the daemon writes them into its log instead:
  journalctl -u sluice | sluice jobs -
)"},
    {"sluice-policy", "EXAMPLES",
     R"(What there is, what slo can be told, and another policy for the daemon:
  sluice policy
  sluice policy slo
  sluice policy fixed_timeslice:slice=5ms --use
)"},
    {"sluice-sim", "EXAMPLES", R"(Two GPUs of the MES generation below /tmp/gpu, until Ctrl-C:
  sluice sim --root /tmp/gpu --profile gfx1100 --gpus 2
)"},
    {"sluice-lab", "EXAMPLES", R"(Two policies at two loads, as a page:
  sluice lab --policy fixed_timeslice --policy fair_share --load 0.3,0.6 --report page.html
From which length of offline kernels on does suspending pay?
  sluice lab --sweep --report sweep.html
)"},
    {"sluice-replay", "EXAMPLES", R"(What would shorter slices have done with last night's arrivals?
  sluice replay node.rec --policy fixed_timeslice:slice=2ms
)"},
    {"sluice-analyze", "EXAMPLES",
     R"(A program alone and beside others, both with AMD_LOG_LEVEL=5 and AMD_LOG_LEVEL_FILE:
  sluice analyze alone.log shared.log
)"},
    {"sluice-accept", "EXAMPLES",
     R"(What would be done, and what each step risks; then only measuring, in short:
  sluice accept --list
  sluice accept --repeat 20 --report accept.md
)"},
    {"sluice.toml", "DESCRIPTION",
     R"(The configuration of the daemon, 'sluice run', and of the agent that acts for it. It is TOML with four
tables: [daemon] says whether it acts and where its files are, [scheduler] the limits that hold for every
policy, [policy] which one decides and with which parameters, [roles] which processes are online and which
offline. Every key has a default, so an empty file is a good one; with it the daemon only observes. The two
keys that most nodes need:

  [daemon]
  mode = "enforce"
  [roles]
  may_claim_offline = { users = ["*"] }

Durations are text with a unit ("200us", "2s"). A key that is unknown or out of range is an error with its
line, and the daemon does not start. 'sluice check FILE' says so before. SIGHUP ('systemctl reload sluice')
reads the file anew, all of it or nothing.
)"},
    {"sluice.toml", "FILES",
     R"(  /etc/sluice/sluice.toml  that of the service and of the agent; must be root's
)"},
};

}  // namespace

std::span<const added_section> added_sections() { return all_sections; }

}  // namespace sluice::cli
