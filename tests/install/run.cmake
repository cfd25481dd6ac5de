function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  message("${out}")
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed (${code}): ${command}")
  endif()
  set(out "${out}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK}/stage ${WORK}/consumer)
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/stage)
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/consumer -G Ninja
  -D CMAKE_BUILD_TYPE=${BUILD_TYPE} -D CMAKE_CXX_COMPILER=${COMPILER}
  -D CMAKE_PREFIX_PATH=${WORK}/stage)
run(${CMAKE_COMMAND} --build ${WORK}/consumer)
# The agent is found in PATH, and says what it misses.
run(${CMAKE_COMMAND} -E env "PATH=${WORK}/stage/bin:$ENV{PATH}" ${WORK}/consumer/consumer)
if(NOT out MATCHES "cannot open /nonexistent/kfd|refuses io_uring")
  message(FATAL_ERROR "the installed agent was not found in PATH")
endif()
run(${WORK}/stage/bin/sluice-agent --help)
run(${WORK}/stage/bin/sluice-sim --help)
