# A program's --help ends well and names it; a wrong option gets one line and a code that is not 0.
get_filename_component(name ${PROGRAM} NAME)
string(REGEX REPLACE "-epoll$" "" name ${name})

execute_process(COMMAND ${PROGRAM} --help RESULT_VARIABLE code OUTPUT_VARIABLE out)
if(NOT code EQUAL 0 OR NOT out MATCHES "${name}")
  message(FATAL_ERROR "--help ended with ${code}, or does not name the program: ${out}")
endif()

execute_process(COMMAND ${PROGRAM} --no-such-option RESULT_VARIABLE code ERROR_VARIABLE error)
if(code EQUAL 0 OR NOT error MATCHES "^${name}: [^\n]+\n$")
  message(FATAL_ERROR "a wrong option ended with ${code} and said: ${error}")
endif()
