# A portable archive: `cpack -G TGZ` in a build directory of type Release. It holds the programs in bin/, the libraries
# that they need beside glibc in lib/, and it runs from any folder. The target sluice_portable builds all that it holds.
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_BINARY_DIR}/portable_cpack.cmake)
set(portable_name ${PROJECT_NAME}-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
file(CONFIGURE OUTPUT ${CPACK_PROJECT_CONFIG_FILE} CONTENT [[
# CPack reads this once for each generator. The packages of other generators stay as they are.
if(CPACK_GENERATOR STREQUAL "TGZ")
  set(CPACK_INSTALL_CMAKE_PROJECTS "@PROJECT_BINARY_DIR@;sluice;portable;/")
  set(CPACK_PACKAGING_INSTALL_PREFIX "/")
  set(CPACK_PACKAGE_FILE_NAME "@portable_name@")
  set(CPACK_ARCHIVE_COMPONENT_INSTALL OFF)
endif()
]] @ONLY)

set(portable_problem)
if(NOT CMAKE_BUILD_TYPE STREQUAL "Release" OR SLUICE_SANITIZE)
  set(portable_problem "the archive needs a build of type Release without sanitizers; use the preset release")
else()
  foreach(name seccomp uring)
    find_library(SLUICE_STATIC_${name} lib${name}.a)
    mark_as_advanced(SLUICE_STATIC_${name})
    if(NOT SLUICE_STATIC_${name})
      set(portable_problem "lib${name}.a not found; install the static library (Debian: lib${name}-dev)")
    endif()
  endforeach()
endif()
if(portable_problem)
  install(CODE "message(FATAL_ERROR \"cannot make the portable archive: ${portable_problem}\")"
    COMPONENT portable EXCLUDE_FROM_ALL)
  return()
endif()

# Every program of the archive is linked once more, out of the usual one's objects and of the same targets. RPATH, not
# RUNPATH: only an RPATH also serves what the libraries need of each other, and those are a distribution's, which have
# none of their own.
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
set(of_archive COMPONENT portable EXCLUDE_FROM_ALL)
set(portable_targets)
function(portable_program name)
  set(target sluice_portable_${name})
  get_target_property(links ${name} LINK_LIBRARIES)
  add_executable(${target} $<TARGET_OBJECTS:${name}>)
  target_link_libraries(${target} PRIVATE ${links})
  set_target_properties(${target} PROPERTIES
    LINKER_LANGUAGE CXX
    OUTPUT_NAME ${name}
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/portable
    BUILD_WITH_INSTALL_RPATH ON)
  install(TARGETS ${target} DESTINATION bin ${of_archive})
  list(APPEND portable_targets ${target})
  set(portable_targets ${portable_targets} PARENT_SCOPE)
endfunction()
set(portable_programs sluice sluice-epoll sluice-sim sluice-sim-victim sluice-nvidia-victim)
if(SLUICE_BUILD_EXAMPLES)
  list(APPEND portable_programs sluice-demo online_demo online_demo-epoll offline_demo)
endif()
foreach(program IN LISTS portable_programs)
  portable_program(${program})
  set_property(TARGET sluice_portable_${program} PROPERTY INSTALL_RPATH "$ORIGIN/../lib")
  target_link_options(sluice_portable_${program} PRIVATE LINKER:--disable-new-dtags)
endforeach()
# An agent with file capabilities ignores $ORIGIN, so this one has its libraries inside, except glibc.
portable_program(sluice-agent)
target_link_options(sluice_portable_sluice-agent PRIVATE -static-libstdc++ -static-libgcc)
set_property(TARGET sluice_portable_sluice-agent PROPERTY SLUICE_STATIC ON)
foreach(name seccomp uring)
  get_target_property(shared PkgConfig::lib${name} INTERFACE_LINK_LIBRARIES)
  set_property(TARGET PkgConfig::lib${name} PROPERTY INTERFACE_LINK_LIBRARIES
    "$<IF:$<BOOL:$<TARGET_PROPERTY:SLUICE_STATIC>>,${SLUICE_STATIC_${name}},${shared}>")
endforeach()
add_custom_target(sluice_portable DEPENDS ${portable_targets} sluice_client_c_shared sluice_manual)

install(TARGETS sluice_client_c_shared LIBRARY DESTINATION lib ${of_archive})
install(FILES adapters/client/include/sluice/client.h DESTINATION include/sluice ${of_archive})
file(GLOB python CONFIGURE_DEPENDS adapters/client/python/sluice/*.py)
install(FILES ${python} adapters/client/python/sluice/py.typed DESTINATION share/sluice/python/sluice ${of_archive})
install(DIRECTORY adapters/sim/profiles/ DESTINATION share/sluice/profiles ${of_archive})
install(FILES adapters/cli/accept/victim.hip.cpp adapters/cli/accept/victim.hpp DESTINATION share/sluice/accept ${of_archive})
set(manual ${PROJECT_BINARY_DIR}/adapters/cli/manual)
install(DIRECTORY ${manual}/man1 ${manual}/man5 ${manual}/man8 DESTINATION share/man ${of_archive})
install(FILES ${manual}/bash/sluice DESTINATION share/bash-completion/completions ${of_archive})
install(FILES ${manual}/fish/sluice.fish DESTINATION share/fish/vendor_completions.d ${of_archive})
install(FILES ${manual}/zsh/_sluice DESTINATION share/zsh/site-functions ${of_archive})
install(FILES LICENSE adapters/node/sluice.toml DESTINATION share/doc/sluice ${of_archive})

list(TRANSFORM portable_targets REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE programs)
install(CODE "
  set(programs \"${programs}\")
  set(inside_programs \"${SLUICE_STATIC_seccomp};${SLUICE_STATIC_uring}\")
  include(\"${CMAKE_CURRENT_LIST_DIR}/sluice_portable_libraries.cmake\")
  set(PAGES_FROM \"${PROJECT_SOURCE_DIR}\")
  set(PAGES_INTO \"\${CMAKE_INSTALL_PREFIX}/share/doc/sluice\")
  include(\"${CMAKE_CURRENT_LIST_DIR}/sluice_pages.cmake\")" ${of_archive})
