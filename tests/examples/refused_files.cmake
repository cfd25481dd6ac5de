# A file or policy that cannot be used: one line that names it and the reason, and code 2; before anything is
# run.
function(refused pattern)
  execute_process(COMMAND ${PROGRAM} ${ARGN}
    RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE error)
  if(NOT code EQUAL 2 OR NOT error MATCHES "^sluice-demo: ${pattern}[^\n]*\n$")
    message(SEND_ERROR "${ARGN}: ended with ${code} and said: ${error}")
  endif()
  if(NOT out STREQUAL "")
    message(SEND_ERROR "${ARGN}: it began before it looked at the file: ${out}")
  endif()
endfunction()

set(trace ${WORK}/malformed.csv)
file(WRITE ${trace}
  "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,12,3\n2023-11-16 18:17:04.1,ten,3\n")
refused("${trace}:3:23: ContextTokens " --trace ${trace})
refused("/dev/zero:1:65537: the line is longer" --trace /dev/zero)

set(config ${WORK}/malformed.toml)
file(WRITE ${config} "[scheduler]\nmax_suspnd = \"1s\"\n")
refused("${config}:2: max_suspnd " --config ${config})
file(WRITE ${config} "[roles]\nonline_priority = 16\n")
refused("${config}:2: online_priority is 16; it must be 0 to 15" --config ${config})
file(WRITE ${config} "[policy]\nname = \"fixed_timeslice\"\nslice = \"2 years\"\n")
refused("${config}:3: slice is " --config ${config})

refused("--policy none: unknown policy 'none'; available: deadline, " --policy none)
refused("--policy slo:quick=1: quick is not a parameter of this policy; " --policy slo:quick=1)
refused("--policy fixed_timeslice:slice=2h: slice is 2h; it must be " --policy fixed_timeslice:slice=2h)
refused("--policy: invalid parameter 'slice' in 'fixed_timeslice:slice'" --policy fixed_timeslice:slice)
refused("--policy slo: [^\n]*target" --policy slo)
refused("--policy break_even.py: a scheduler cannot load Python policies" --policy break_even.py)
refused("--policy ${trace}: is not a shared library" --policy ${trace})
refused("--policy excludes --slice" --policy slo:itl.p99=50ms --slice 5ms)
refused("${WORK}/nowhere.toml: cannot read" --config ${WORK}/nowhere.toml)
refused("${WORK}: cannot read the configuration: not a regular file" --config ${WORK})

refused("${WORK}: cannot be written: Is a directory" --json ${WORK})
refused("${WORK}/nowhere/x.json: cannot be written: No such file" --json ${WORK}/nowhere/x.json)
refused("${WORK}: cannot be written: Is a directory" --record ${WORK})

# Whether the file could be written was tried without leaving one behind.
file(REMOVE ${WORK}/refused.json)
execute_process(COMMAND ${PROGRAM} --json ${WORK}/refused.json --root ${WORK}/nowhere/root
  RESULT_VARIABLE code OUTPUT_QUIET ERROR_QUIET)
if(NOT code EQUAL 1 OR EXISTS ${WORK}/refused.json)
  message(SEND_ERROR "ended with ${code}, or left an empty ${WORK}/refused.json")
endif()
