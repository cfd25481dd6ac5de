# The whole demo, shortened: what may never happen did not, and preemption did what it is for.
# With POLICY, under that one. Load long by itself is what adapters/observe says to type.
set(json ${WORK}/${LOAD}.json)
set(policy)
if(POLICY)
  set(policy --policy ${POLICY})
endif()
set(typed --load ${LOAD} --window 1.5 --trace-out trace.json)
if(LOAD STREQUAL "long" AND NOT POLICY)
  file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/../../adapters/observe/README.md typed
    REGEX "^examples/demo.sh --load long --window 2 --trace-out trace.json$")
  if(NOT typed)
    message(FATAL_ERROR "adapters/observe/README.md says something else")
  endif()
  string(REPLACE "examples/demo.sh " "" typed "${typed}")
  separate_arguments(typed)
endif()
string(REPLACE "trace.json" "${WORK}/${LOAD}.json.trace" typed "${typed}")
file(REMOVE ${json})
execute_process(
  COMMAND ${PROGRAM} ${typed} --drain-limit 2s --json ${json} ${policy}
    --record ${WORK}/${LOAD}.rec --report ${WORK}/${LOAD}.html
  RESULT_VARIABLE code OUTPUT_VARIABLE out)
message("${out}")
if(NOT code EQUAL 0)
  message(FATAL_ERROR "the demo ended with ${code}")
endif()
if(NOT out MATCHES "^The GPU is simulated \\(profile ")
  message(FATAL_ERROR "the first line does not say that the GPU is simulated")
endif()

if(POLICY)
  string(REGEX REPLACE ":.*" "" name ${POLICY})
  if(NOT out MATCHES "\nscheduler: ${name}[^\n]* \\(${POLICY}\\), ")
    message(FATAL_ERROR "the scheduler's line does not name ${POLICY}")
  endif()
endif()

string(FIND "${out}" "\nwritten: ${json}, ${WORK}/${LOAD}.html, ${WORK}/${LOAD}.rec, ${WORK}/${LOAD}.json.trace\n" at)
if(at LESS 0)
  message(FATAL_ERROR "it does not say what it has written")
endif()
file(READ ${WORK}/${LOAD}.html page)
foreach(said "The GPU is simulated" "examples/demo.sh --load ${LOAD} --window " "both, scheduled"
    "Online latency and offline work")
  string(FIND "${page}" "${said}" at)
  if(at LESS 0)
    message(SEND_ERROR "the page does not say '${said}'")
  endif()
endforeach()
file(READ ${json} text)
function(expect what)
  if(NOT (${ARGN}))
    message(SEND_ERROR "${what}: not (${ARGN})\n${text}")
  endif()
endfunction()
# Sets `result` to a decimal number of milliseconds in whole microseconds, which math() can add.
function(microseconds result milliseconds)
  if(NOT milliseconds MATCHES "^([0-9]+)(\\.([0-9]*))?$")
    message(FATAL_ERROR "'${milliseconds}' is no number of milliseconds")
  endif()
  string(SUBSTRING "${CMAKE_MATCH_3}000" 0 3 fraction)
  math(EXPR value "${CMAKE_MATCH_1} * 1000 + 1${fraction} - 1000")
  set(${result} ${value} PARENT_SCOPE)
endfunction()
foreach(key still_suspended kernels_lost kernels_repeated failed_outcomes suspends resumes
    offline_loss_percent offline_share_of_alone online_disturbed_ms driver_calls
    offline_alone_kernels_per_s device profile load)
  string(JSON ${key} GET ${text} ${key})
endforeach()
foreach(run online_alone unscheduled scheduled)
  foreach(key requests p50_ms p99_ms)
    string(JSON ${run}_${key} GET ${text} runs ${run} ${key})
  endforeach()
endforeach()

expect("the device" device STREQUAL simulated AND load STREQUAL LOAD)
expect("every queue runs at the end" still_suspended EQUAL 0)
expect("kernels ran exactly once" kernels_lost EQUAL 0 AND kernels_repeated EQUAL 0)
expect("no driver command failed" failed_outcomes EQUAL 0)
expect("offline was suspended" suspends GREATER 0 AND driver_calls GREATER 1)
expect("every suspend has its resume" suspends EQUAL resumes)
# The scheduler's own counts are what its recording says.
execute_process(COMMAND ${SLUICE} replay ${WORK}/${LOAD}.rec --json
  RESULT_VARIABLE code OUTPUT_VARIABLE recorded)
expect("the recording can be replayed" code EQUAL 0)
foreach(key suspends resumes driver_calls)
  string(JSON recorded_${key} GET ${recorded} rows 0 ${key})
  expect("recorded ${key}" recorded_${key} EQUAL ${key})
endforeach()
if(CHECK_TRACE)
  execute_process(COMMAND ${CHECK_TRACE} trace ${WORK}/${LOAD}.json.trace RESULT_VARIABLE code)
  expect("its timeline is one" code EQUAL 0)
endif()
expect("every run served the same requests" online_alone_requests EQUAL scheduled_requests
  AND unscheduled_requests EQUAL scheduled_requests)

# What preemption is for. That scheduled p99 is at most that of online alone plus one suspend, one resume and 5 ms is a
# matter of milliseconds, which other processes of this machine also take: demo_and_lab.py holds it in virtual time, and
# real time against virtual time.
if(LOAD STREQUAL "long" AND NOT POLICY)
  microseconds(scheduled ${scheduled_p99_ms})
  microseconds(unscheduled ${unscheduled_p99_ms})
  math(EXPR third "${unscheduled} / 3")
  expect("preemption makes p99 three times shorter" scheduled LESS_EQUAL third)
  expect("preemption shortens latency" scheduled_p99_ms LESS unscheduled_p99_ms
    AND scheduled_p50_ms LESS unscheduled_p50_ms)
endif()
