set(SLUICE_POLICY_PLUGIN_MAP ${CMAKE_CURRENT_LIST_DIR}/sluice_policy_plugin.map)

# sluice_add_policy_plugin(target SOURCES ... [DEPS ...])
# A policy that schedulers load by its path: the module <target>.so. One of the sources has the line
# SLUICE_POLICY_PLUGIN(...) of sluice/policy_plugin.hpp, or exports what sluice/plugin.h says.
# It shows that one symbol and no other: plugins in one process must not share each other's code.
function(sluice_add_policy_plugin target)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${target} MODULE ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE sluice::vocab ${arg_DEPS})
  if(TARGET sluice_hardening)  # Within sluice's own build.
    target_link_libraries(${target} PRIVATE sluice_hardening)
  endif()
  target_link_options(${target} PRIVATE -Wl,--version-script=${SLUICE_POLICY_PLUGIN_MAP})
  set_target_properties(${target} PROPERTIES
    PREFIX ""
    LINK_DEPENDS ${SLUICE_POLICY_PLUGIN_MAP}
    C_VISIBILITY_PRESET hidden
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
endfunction()
