/* Scheduler (reconciler, attacher, breaker), agent with its lanes, and driver, for spin. README.md says what
 * is left out. Time is not modelled: what a deadline brings about may happen at any moment, and does happen
 * in the end (weak fairness). What disturbs comes a bounded number of times, so that liveness means "once
 * it stops".
 *
 * -D TARGETS=n QUEUES=n RING=n: offline processes, queues of each, places in each ring.
 * -D WISHES=n ROLES=n FAULTS=n DEATHS=n HOST=n: how often online work comes, roles change, outcomes are not
 *    "done" or sessions end, the agent dies, the host fails.
 * -D BUG_...: one thing is wrong, and a property has to fail. */

#ifndef TARGETS
#define TARGETS 1
#endif
#ifndef QUEUES
#define QUEUES 2
#endif
#ifndef RING
#define RING 2
#endif
#ifndef WISHES
#define WISHES 2
#endif
#ifndef ROLES
#define ROLES 2
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef HOST
#define HOST 1
#endif
#define ALL (TARGETS * QUEUES)

mtype = { none, attaching, attached, detaching };             /* a session, as the scheduler knows it */
mtype = { running, suspending, suspended, resuming, doubt };  /* a queue, as the scheduler knows it */
mtype = { shut, opening, open };                              /* a lane */
mtype = { c_attach, c_detach, c_suspend, c_resume, nothing };
mtype = { r_attached, r_refused, r_completed, r_detached, r_gpu_lost };
mtype = { done, invalid, failed, target_gone };

/* The shared page: two rings of fixed size. kind, target, batch number, queues or outcomes. */
typedef queues_t { bool named[QUEUES] };
typedef outcomes_t { mtype got[QUEUES] };
chan commands = [RING] of { mtype, byte, byte };
chan reports = [RING] of { mtype, byte, byte };
/* What a batch names, and what became of it: one of each target is under way at most. */
queues_t named[TARGETS];
outcomes_t became[TARGETS];

/* The driver. */
bool off[ALL];           /* is_suspended */
bool in_call[TARGETS];   /* a lane is inside an ioctl: it cannot be killed meanwhile */

/* The agent. */
bool agent_lives = true;
bool agent_gone = false; /* its pidfd is readable: the kernel has resumed everything */
bool closing = false;
mtype lane[TARGETS] = shut;
mtype slot[TARGETS] = nothing;
byte slot_batch[TARGETS];
bool leave[TARGETS];
/* An answer of the agent itself, to a batch that no lane took. */
byte refused_batch[TARGETS];

/* The host. */
bool host_runs = true;   /* false: crashed, hung or stopped: no lease, no turn */
bool bell = true;        /* there is something to look at: any of its descriptors, or a timer */
mtype session[TARGETS] = none;
mtype queue[ALL] = running;
bool refused[ALL];       /* not asked again before the next wish: hold_off */
byte batch[TARGETS];     /* in flight; 0: none */
byte last_batch[TARGETS];
bool gpu_lost = false;
/* What it was told and what its policy wants. */
bool online[TARGETS];
bool wanted[TARGETS];
/* What the world has to tell: an inbox of one place is enough, for it tells what is, not what happened. */
bool is_online[TARGETS];

byte wishes = WISHES;
byte roles = ROLES;
byte faults = FAULTS;
byte deaths = DEATHS;
byte host_failures = HOST;
byte i, q;  /* of atomic stretches only */

#define index(t, n) ((t) * QUEUES + (n))
#define some_off(t) (queue[index(t, 0)] != running || queue[index(t, QUEUES - 1)] != running)

/* One turn ------------------------------------------------------------------------------------------------ */

inline set_all(t, what) {
  q = 0;
  do
  :: q < QUEUES -> queue[index(t, q)] = what; q++
  :: else -> break
  od
}

inline forget_session(t) {
  session[t] = none;
  batch[t] = 0;
  set_all(t, running)
}

inline take_outcomes(t, was_suspend) {
  q = 0;
  do
  :: q < QUEUES ->
     if
     :: named[t].named[q] && became[t].got[q] == done ->
        queue[index(t, q)] = (was_suspend -> suspended : running)
     :: named[t].named[q] && became[t].got[q] == invalid ->
        if
        :: was_suspend -> queue[index(t, q)] = running; refused[index(t, q)] = true
        :: else -> queue[index(t, q)] = doubt
        fi
     :: named[t].named[q] && became[t].got[q] == failed ->
#ifdef BUG_DOUBT
        /* It did not work, so it runs. */
        queue[index(t, q)] = running;
#else
        queue[index(t, q)] = doubt;
#endif
        refused[index(t, q)] = true;
        gpu_lost = true  /* breaker_after = 1 */
     :: named[t].named[q] && became[t].got[q] == target_gone -> queue[index(t, q)] = running
     :: else -> skip
     fi;
     q++
  :: else -> break
  od
}

inline take_reports() {
  do
  :: len(reports) > 0 ->
     reports ? kind, who, number;
     if
     :: kind == r_attached -> session[who] = attached
     :: kind == r_refused -> session[who] = none
     :: kind == r_detached -> forget_session(who)
     :: kind == r_gpu_lost -> gpu_lost = true
     :: kind == r_completed && batch[who] != number -> skip
     :: kind == r_completed && batch[who] == number ->
        batch[who] = 0;
        if
        :: queue[index(who, 0)] == suspending || queue[index(who, QUEUES - 1)] == suspending ->
           take_outcomes(who, true)
        :: else -> take_outcomes(who, false)
        fi
     fi
  :: else -> break
  od
}

/* A full ring is tried again by a timer (busy_retry, failure_backoff): the bell stays rung. And the agent
 * takes commands however full the ring of reports is. */
#ifdef BUG_WAITS
#define has_room(ring) (true)
#define has_time (len(reports) < RING)
#else
#define has_room(ring) (len(ring) < RING)
#define has_time (true)
#endif

#ifdef BUG_ROLE
/* Once something is wanted, what a process has become meanwhile is not looked at. */
#define is_foreign(t) (online[t] && !wanted[t])
#else
#define is_foreign(t) online[t]
#endif

/* The queues of t for which a command of that kind is needed. */
inline name_queues(t, suspend) {
  q = 0;
  some = false;
  do
  :: q < QUEUES ->
     if
     :: suspend -> named[t].named[q] = (queue[index(t, q)] == running && !refused[index(t, q)])
     :: else -> named[t].named[q] = (queue[index(t, q)] == doubt ||
                                     (queue[index(t, q)] == suspended && !held))
     fi;
     some = some || named[t].named[q];
     q++
  :: else -> break
  od
}

inline hand_over(t, suspend) {
  /* Never used again: an answer to an old one may be late. */
  last_batch[t]++;
  assert(last_batch[t] != 0);
  batch[t] = last_batch[t];
  q = 0;
  do
  :: q < QUEUES ->
     if
     :: named[t].named[q] -> queue[index(t, q)] = (suspend -> suspending : resuming)
     :: else -> skip
     fi;
     q++
  :: else -> break
  od;
  /* Rule 1. */
  assert(!suspend || !is_online_as_told);
  commands ! (suspend -> c_suspend : c_resume), t, batch[t]
}

inline work_on(t) {
  held = wanted[t] && !is_foreign(t) && session[t] == attached && !gpu_lost;
  is_online_as_told = online[t];
  if
  /* The attacher. */
  :: session[t] == none && !online[t] && !gpu_lost ->
     if
     :: has_room(commands) -> session[t] = attaching; commands ! c_attach, t, 0
     :: else -> bell = true
     fi
  :: session[t] == attached && is_foreign(t) ->
     if
     :: has_room(commands) -> session[t] = detaching; commands ! c_detach, t, 0
     :: else -> bell = true
     fi
  :: else -> skip
  fi;
  if
  /* The reconciler: a lane takes one batch at a time. */
  :: session[t] == attached && batch[t] == 0 ->
     name_queues(t, false);
     if
     :: some && has_room(commands) -> hand_over(t, false)
     :: some && !has_room(commands) -> bell = true
     :: !some && held ->
        name_queues(t, true);
        if
        :: some && has_room(commands) -> hand_over(t, true)
        :: some && !has_room(commands) -> bell = true
        :: else -> skip
        fi
     :: else -> skip
     fi
  :: else -> skip
  fi
}

active proctype host() {
  mtype kind;
  byte who, number, t;
  bool held, some, is_online_as_told;
end:
  do
  /* The reports first, then what the world says, then the policy's wishes: as one turn. */
  :: atomic {
       host_runs && (bell || len(reports) > 0 || agent_gone) ->
       bell = false;
       take_reports();
       if
       /* All that it had said was heard: everything runs, and another one is started. */
       :: agent_gone && len(reports) == 0 ->
          agent_gone = false;
          t = 0;
          do
          :: t < TARGETS -> forget_session(t); t++
          :: else -> break
          od;
          do
          :: commands ? _, _, _
          :: len(commands) == 0 -> break
          od;
          closing = false;
          agent_lives = true
       :: else -> skip
       fi;
       t = 0
     };
     do
     :: atomic {
          host_runs && t < TARGETS ->
          online[t] = is_online[t];
          if
          :: agent_lives -> work_on(t)
          :: else -> skip
          fi;
          t++
        }
     :: t == TARGETS -> break
     :: !host_runs -> break
     od
  od
}

/* What time brings: max_suspend is over, or the online work that a hold was for. */
active [TARGETS] proctype limit() {
  byte t = _pid - 1;
end:
  do
  :: atomic { host_runs && wanted[t] && some_off(t) -> wanted[t] = false; bell = true }
  od
}

/* Acting side -------------------------------------------------------------------------------------------------- */

inline refuse(t, suspend, gone) {
  q = 0;
  do
  :: q < QUEUES ->
     became[t].got[q] = (gone -> target_gone : (suspend -> invalid : failed));
     q++
  :: else -> break
  od
}

active proctype agent() {
  mtype kind;
  byte who, number;
end:
  do
  :: atomic {
       agent_lives && !closing && len(commands) > 0 && has_time ->
       commands ? kind, who, number;
       if
       :: kind == c_attach -> lane[who] = opening
       :: kind == c_detach -> leave[who] = (lane[who] != shut)
       :: else ->
          if
          :: lane[who] == open && slot[who] == nothing -> slot[who] = kind; slot_batch[who] = number
          :: else -> refuse(who, kind == c_suspend, lane[who] == shut); refused_batch[who] = number
          fi
       fi
     }
#ifndef BUG_LEASE
  /* The lease has lapsed, the connection is closed, or the host's pidfd is readable. */
  :: atomic { agent_lives && !closing && !host_runs -> closing = true }
#endif
  /* It dies, or hangs and is killed. */
  :: atomic { agent_lives && !closing && deaths > 0 -> deaths--;
       if
       :: closing = true
       :: skip  /* Whatever may happen need not. */
       fi
     }
  /* A process ends when none of its threads is inside the driver; then the driver ends its sessions. */
  :: atomic {
       agent_lives && closing && !in_call[0] && !in_call[TARGETS - 1] ->
       i = 0;
       do
       :: i < TARGETS ->
          lane[i] = shut; slot[i] = nothing; leave[i] = false; refused_batch[i] = 0; i++
       :: else -> break
       od;
       i = 0;
       do
#ifdef BUG_KERNEL
       :: i < ALL -> i++
#else
       :: i < ALL -> off[i] = false; i++
#endif
       :: else -> break
       od;
       agent_lives = false;
       agent_gone = true
     }
  od
}

/* The agent's own answers wait for room in the ring, and keep nobody waiting. */
active [TARGETS] proctype own_reports() {
  byte t = _pid - TARGETS - 2;
end:
  do
  :: atomic {
       agent_lives && !closing && refused_batch[t] != 0 && len(reports) < RING ->
       reports ! r_completed, t, refused_batch[t];
       refused_batch[t] = 0
     }
  od
}

inline call_driver(t) {
  q = 0;
  do
  :: q < QUEUES ->
     if
     :: !named[t].named[q] -> skip
     :: named[t].named[q] -> off[index(t, q)] = (slot[t] == c_suspend); became[t].got[q] = done
     /* Nothing done: the queue is new or being destroyed. */
     :: named[t].named[q] && faults > 0 && slot[t] == c_suspend && !off[index(t, q)] ->
        became[t].got[q] = invalid; faults--
     /* The hardware failed after the software state had changed, or the call was refused. */
     :: named[t].named[q] && faults > 0 && slot[t] == c_suspend ->
        off[index(t, q)] = true; became[t].got[q] = failed; faults--
     :: named[t].named[q] && faults > 0 -> became[t].got[q] = failed; faults--
     fi;
     q++
  :: else -> break
  od
}

inline run_all(t) {
  q = 0;
  do
  :: q < QUEUES -> off[index(t, q)] = false; q++
  :: else -> break
  od
}

active [TARGETS] proctype lanes() {
  byte t = _pid - 2 * TARGETS - 2;
  bool stuck;
end:
  do
  :: atomic { agent_lives && !closing && lane[t] == opening && len(reports) < RING ->
       if
       :: lane[t] = open; reports ! r_attached, t, 0
       :: faults > 0 -> faults--; lane[t] = shut; reports ! r_refused, t, 0
       fi
     }
  :: atomic { agent_lives && !closing && lane[t] == open && slot[t] != nothing ->
       in_call[t] = true;
       stuck = false
     };
     /* Stuck: the driver returns in the end, after 9 s, and the GPU is given up long before. */
     if
     :: atomic { faults > 0 && !closing && len(reports) < RING -> faults--; stuck = true; reports ! r_gpu_lost, t, 0 }
     :: skip
     fi;
     atomic { call_driver(t) };
     if
     :: atomic { !closing && len(reports) < RING ->
          reports ! r_completed, t, slot_batch[t];
          slot[t] = nothing;
          in_call[t] = false
        }
     :: atomic { closing -> in_call[t] = false }
     fi
  /* A session ends because it is asked to, or by itself; with it every suspension. */
  :: atomic { agent_lives && !closing && lane[t] == open && slot[t] == nothing && len(reports) < RING &&
              (leave[t] || faults > 0) ->
       if
       :: leave[t] -> leave[t] = false
       :: !leave[t] && faults > 0 -> faults--
       :: !leave[t] && faults > 0 -> faults--; goto end
       fi;
#ifndef BUG_DETACH
       run_all(t);
#endif
       lane[t] = shut;
       reports ! r_detached, t, 0
     }
  od
}

/* Who disturbs ------------------------------------------------------------------------------------------------- */

active proctype world() {
  byte t;
end:
  do
  :: atomic { wishes > 0 && host_runs ->
       wishes--;
       t = 0;
       do
       :: t < TARGETS ->
          wanted[t] = true;
          q = 0;
          do
          :: q < QUEUES -> refused[index(t, q)] = false; q++
          :: else -> break
          od;
          t++
       :: else -> break
       od;
       bell = true
     }
  :: atomic { roles > 0 ->
       roles--;
       is_online[roles % TARGETS] = !is_online[roles % TARGETS];
       bell = true
     }
  :: atomic { host_failures > 0 && host_runs -> host_failures--;
       if
       :: host_runs = false
       :: skip
       fi
     }
  od
}

/* Properties ------------------------------------------------------------------------------------------------------- */

/* Online is never suspended: hand_over() asserts that no such command is given, and this that none of the
 * queues of a process is suspended once the scheduler knows that it is online and has let go of it. */
#define is_wrong(t) (online[t] && session[t] == none && (off[index(t, 0)] || off[index(t, QUEUES - 1)]))
active proctype watch() {
end:
  do
  :: atomic { is_wrong(0) || is_wrong(TARGETS - 1) -> assert(false) }
  od
}

/* What is suspended runs again. Of one queue, for they are all alike. */
ltl resumed { [] (off[0] -> <> !off[0]) }

#ifdef ENDS
/* No deadlock: spin finds end states outside of an `end` label, and where nothing can happen any more,
 * everything runs. */
active proctype at_the_end() {
end:
  do
  :: timeout -> assert(!off[0] && !off[QUEUES - 1] && !off[ALL - 1]); break
  od
}
#endif
