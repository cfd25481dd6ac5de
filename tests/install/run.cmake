function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  message("${out}")
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed (${code}): ${command}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK}/stage ${WORK}/consumer)
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/stage)
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/consumer -G Ninja
  -D CMAKE_BUILD_TYPE=${BUILD_TYPE} -D CMAKE_CXX_COMPILER=${COMPILER}
  -D CMAKE_PREFIX_PATH=${WORK}/stage)
run(${CMAKE_COMMAND} --build ${WORK}/consumer)
run(${WORK}/consumer/consumer)
run(${WORK}/stage/bin/sluice-agent --help)
run(${WORK}/stage/bin/sluice-sim --help)
