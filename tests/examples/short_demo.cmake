# The whole demo, shortened: what may never happen did not, and preemption did what it is for.
set(json ${WORK}/${LOAD}.json)
file(REMOVE ${json})
execute_process(
  COMMAND ${PROGRAM} --load ${LOAD} --window 1.5 --drain-limit 2s --json ${json}
  RESULT_VARIABLE code OUTPUT_VARIABLE out)
message("${out}")
if(NOT code EQUAL 0)
  message(FATAL_ERROR "the demo ended with ${code}")
endif()
if(NOT out MATCHES "^The GPU is simulated \\(profile ")
  message(FATAL_ERROR "the first line does not say that the GPU is simulated")
endif()

file(READ ${json} text)
function(expect what)
  if(NOT (${ARGN}))
    message(SEND_ERROR "${what}: not (${ARGN})\n${text}")
  endif()
endfunction()
foreach(key still_suspended kernels_lost kernels_repeated failed_outcomes suspends resumes
    offline_loss_percent offline_share_of_alone online_disturbed_ms driver_calls
    offline_alone_kernels_per_s device profile load)
  string(JSON ${key} GET ${text} ${key})
endforeach()
foreach(run online_alone unscheduled scheduled)
  foreach(key requests p50_ms p90_ms p99_ms max_ms)
    string(JSON ${run}_${key} GET ${text} runs ${run} ${key})
  endforeach()
endforeach()

expect("the device" device STREQUAL simulated AND load STREQUAL LOAD)
expect("every queue runs at the end" still_suspended EQUAL 0)
expect("kernels ran exactly once" kernels_lost EQUAL 0 AND kernels_repeated EQUAL 0)
expect("no driver command failed" failed_outcomes EQUAL 0)
expect("offline was suspended" suspends GREATER 0 AND driver_calls GREATER 1)
expect("every suspend has its resume" suspends EQUAL resumes)
expect("every run served the same requests" online_alone_requests EQUAL scheduled_requests
  AND unscheduled_requests EQUAL scheduled_requests)
if(LOAD STREQUAL "long")
  expect("preemption shortens latency" scheduled_p99_ms LESS unscheduled_p99_ms
    AND scheduled_p50_ms LESS unscheduled_p50_ms)
endif()
