# A malformed trace: one line that names file, line and column, and code 2; before anything is mounted.
set(trace ${WORK}/malformed.csv)
file(WRITE ${trace}
  "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,12,3\n2023-11-16 18:17:04.1,ten,3\n")
execute_process(COMMAND ${PROGRAM} --trace ${trace}
  RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE error)
if(NOT code EQUAL 2 OR NOT error MATCHES "^sluice-demo: ${trace}:3:23: ContextTokens [^\n]+\n$")
  message(FATAL_ERROR "ended with ${code} and said: ${error}")
endif()
if(NOT out STREQUAL "")
  message(FATAL_ERROR "it began before it looked at the trace: ${out}")
endif()
