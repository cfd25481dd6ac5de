# Run when the portable archive is made: puts the libraries that `programs` need, except glibc's, into its lib/. Where
# they are Debian's, their licences go with them, and those of the static libraries in `inside_programs`.
cmake_policy(VERSION 3.25)
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${programs} RESOLVED_DEPENDENCIES_VAR libraries
  PRE_EXCLUDE_REGEXES "^(ld-linux-x86-64|lib(c|m|pthread|dl|rt|resolv))\\.so")
foreach(library IN LISTS libraries)
  get_filename_component(name ${library} NAME)
  file(REAL_PATH ${library} file)
  file(INSTALL ${file} DESTINATION ${CMAKE_INSTALL_PREFIX}/lib RENAME ${name})
endforeach()

find_program(dpkg_query dpkg-query)
if(dpkg_query)
  foreach(library IN LISTS libraries inside_programs)
    get_filename_component(name ${library} NAME)
    execute_process(COMMAND ${dpkg_query} -S */${name} OUTPUT_VARIABLE owner ERROR_QUIET)
    if(owner MATCHES "^([^:\n]+):")
      set(package ${CMAKE_MATCH_1})
      file(INSTALL /usr/share/doc/${package}/copyright
        DESTINATION ${CMAKE_INSTALL_PREFIX}/share/doc/sluice/licenses RENAME ${package})
    endif()
  endforeach()
endif()
