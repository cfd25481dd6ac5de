# Helper functions for this project's targets: one way to declare a library, a program and a test.
# Why functions: warnings, sanitizers, visibility of Asio's macros, install and export rules are
# then said once.

find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(liburing REQUIRED IMPORTED_TARGET liburing)
find_package(spdlog REQUIRED)

add_library(sluice_warnings INTERFACE)
target_compile_options(sluice_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wsign-conversion;-Wold-style-cast;-Woverloaded-virtual;-Wdelete-non-virtual-dtor>
  $<$<AND:$<BOOL:${SLUICE_WERROR}>,$<COMPILE_LANGUAGE:CXX>>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # At -O3, g++ 12 warns about the insides of std::string's own operator+ and assign (GCC bug 105651).
  target_compile_options(sluice_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict;-Wno-dangling-pointer>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_UNITY_BUILD)
  # In a unity build every source file is an included one, whose unnamed namespaces g++ warns about.
  target_compile_options(sluice_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
if(SLUICE_SANITIZE)
  add_compile_options(-fsanitize=${SLUICE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${SLUICE_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND SLUICE_SANITIZE MATCHES "undefined")
    # clang 14 cannot compile coroutines with this check ("difference across sections").
    add_compile_options(-fno-sanitize=function)
  endif()
  if(SLUICE_SANITIZE MATCHES "fuzzer-no-link")
    # Relative, because ccache compares this path as text: several checkouts then share a cache. Ninja runs compilers
    # in the build directory.
    file(RELATIVE_PATH uncounted ${CMAKE_BINARY_DIR} ${PROJECT_SOURCE_DIR}/tests/fuzz/uncounted.txt)
    add_compile_options(-fsanitize-coverage-ignorelist=${uncounted})
  endif()
endif()

# What makes a flaw harder to use, in all that is installed: programs, shared libraries and what they are made
# of. Position-independent is all of it already, and PIE the programs. Not with sanitizers, which bring checks of
# their own that these would hide. tests/install/hardening.sh looks at what was built.
include(CheckPIESupported)
check_pie_supported(LANGUAGES C CXX)
add_library(sluice_hardening INTERFACE)
if(NOT SLUICE_SANITIZE)
  target_compile_options(sluice_hardening INTERFACE -fstack-protector-strong -fstack-clash-protection
    # glibc's checks need an optimising compiler.
    "$<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=3>")
  target_link_options(sluice_hardening INTERFACE LINKER:-z,relro,-z,now,-z,noexecstack)
endif()

# For programs' own parts, which wait for users, files and drivers: CLI11 is headers alone, and at -O3
# every file that includes it takes twice as long to compile as at -O1.
add_library(sluice_program_flags INTERFACE)
target_compile_options(sluice_program_flags INTERFACE $<$<CONFIG:Release>:-O1> $<$<CONFIG:Debug>:-O0>)

# For whoever includes toml++: 3.3 asserts what malformed text makes untrue ("x = ,"), and goes on to refuse
# it with a sentence where assertions are off. So they are off in every build.
add_library(sluice_toml INTERFACE)
target_compile_options(sluice_toml INTERFACE "-DTOML_ASSERT(expr)=static_assert(true)")
if(SLUICE_SANITIZE MATCHES "undefined")
  # It also calls unreachable what is reached by most letters beyond ASCII where a blank may be: whether such a
  # letter is a blank. Both cases that are left to the compiler then say that it is none, which is right.
  target_compile_options(sluice_toml INTERFACE -fno-sanitize=unreachable)
endif()

# Asio's backend is chosen by macros, and two translation units that disagree break the one-definition
# rule silently. So they live on exported targets and nowhere else.
add_library(sluice_asio_uring INTERFACE)
target_compile_definitions(sluice_asio_uring INTERFACE BOOST_ASIO_HAS_IO_URING BOOST_ASIO_DISABLE_EPOLL
  BOOST_ASIO_NO_DEPRECATED)
target_link_libraries(sluice_asio_uring INTERFACE Boost::headers PkgConfig::liburing Threads::Threads)
add_library(sluice_asio_epoll INTERFACE)
target_compile_definitions(sluice_asio_epoll INTERFACE BOOST_ASIO_NO_DEPRECATED)
target_link_libraries(sluice_asio_epoll INTERFACE Boost::headers Threads::Threads)
add_library(sluice_asio INTERFACE)
if(SLUICE_ASIO_BACKEND STREQUAL "io_uring")
  target_link_libraries(sluice_asio INTERFACE sluice_asio_uring)
elseif(SLUICE_ASIO_BACKEND STREQUAL "epoll")
  target_link_libraries(sluice_asio INTERFACE sluice_asio_epoll)
else()
  message(FATAL_ERROR "SLUICE_ASIO_BACKEND is '${SLUICE_ASIO_BACKEND}'; it must be io_uring or epoll")
endif()
foreach(name asio asio_uring asio_epoll)
  set_target_properties(sluice_${name} PROPERTIES EXPORT_NAME ${name})
  add_library(sluice::${name} ALIAS sluice_${name})
  install(TARGETS sluice_${name} EXPORT sluiceTargets)
endforeach()

# sluice_add_library(name SOURCES ... HEADERS ... DEPS ... PRIVATE_DEPS ...)
# HEADERS are public, below <folder>/include; no SOURCES makes an INTERFACE library.
function(sluice_add_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;HEADERS;DEPS;PRIVATE_DEPS" ${ARGN})
  set(target sluice_${name})
  if(arg_SOURCES)
    add_library(${target} ${arg_SOURCES})
    set(scope PUBLIC)
    target_link_libraries(${target} PRIVATE
      $<BUILD_INTERFACE:sluice_warnings> $<BUILD_INTERFACE:sluice_hardening> ${arg_PRIVATE_DEPS})
    target_include_directories(${target} PRIVATE src)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(sluice::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(${target} ${scope} cxx_std_20)
  target_link_libraries(${target} ${scope} ${arg_DEPS})
  if(arg_HEADERS)
    target_sources(${target} ${scope} FILE_SET HEADERS BASE_DIRS include FILES ${arg_HEADERS})
    install(TARGETS ${target} EXPORT sluiceTargets FILE_SET HEADERS)
  else()
    install(TARGETS ${target} EXPORT sluiceTargets)
  endif()
endfunction()

# sluice_add_program(name SOURCES ... DEPS ... [INSTALL])
function(sluice_add_program name)
  cmake_parse_arguments(arg "INSTALL" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE sluice_warnings sluice_hardening ${arg_DEPS})
  if(arg_INSTALL)
    install(TARGETS ${name} COMPONENT tools)
  endif()
endfunction()

# Unit tests run in builds with sanitizers and in the preset quick. The preset release runs only those that sanitizers
# rule out or shorten.
option(SLUICE_UNIT_TESTS "Run all unit tests, not only those that sanitizers rule out or shorten" ON)

# Build exactly what `ctest -L unit` and `ctest -L threads` run. The tests with threads are those unit tests that
# the thread sanitizer runs. sluice_unit_tests_AREA builds the unit tests of one area.
add_custom_target(sluice_unit_tests)
add_custom_target(sluice_threads_tests)

# sluice_test_area(VARIABLE): the area of the tests in this folder, which is also a label of each: the folder below
# tests, or below tests/adapters.
function(sluice_test_area variable)
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/tests OUTPUT_VARIABLE folder)
  string(REGEX REPLACE "^(adapters/)?([^/]+).*$" "\\2" area ${folder})
  set(${variable} ${area} PARENT_SCOPE)
endfunction()

# sluice_add_test(name SOURCES ... DEPS ... LABELS ... [COST n] [UNSANITIZED | ALSO_UNSANITIZED]): one gtest program,
# one CTest entry. `ctest -j` starts those with the highest costs (default 120) first.
# By default, tests/run.sh runs a unit test with sanitizers only. UNSANITIZED: builds with sanitizers leave the test out,
# and the preset release runs it. ALSO_UNSANITIZED: both run it; with sanitizers SLUICE_SANITIZED is defined, which
# selects a short form. Declare unit tests in every build: one in `if(NOT SLUICE_SANITIZE)` and without UNSANITIZED
# runs nowhere by default.
# Tests share a precompiled header (tests/support) and are not optimised: that halves their compile time. In unity
# builds a program's files are compiled as one, so each file's helpers are in a namespace named after the file.
function(sluice_add_test name)
  cmake_parse_arguments(arg "UNSANITIZED;ALSO_UNSANITIZED" "COST" "SOURCES;DEPS;LABELS" ${ARGN})
  set(in_release OFF)
  if(arg_UNSANITIZED OR arg_ALSO_UNSANITIZED)
    set(in_release ON)
    if(NOT unit IN_LIST arg_LABELS)
      message(FATAL_ERROR "${name}: UNSANITIZED and ALSO_UNSANITIZED are for tests with the label unit; remove them")
    endif()
  endif()
  if(arg_UNSANITIZED AND (arg_ALSO_UNSANITIZED OR threads IN_LIST arg_LABELS))
    message(FATAL_ERROR "${name}: UNSANITIZED excludes builds with sanitizers, for which ALSO_UNSANITIZED and the label "
      "threads are; remove one of them")
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE sluice_warnings sluice_test_flags ${arg_DEPS} GTest::gtest_main)
  target_precompile_headers(${name} REUSE_FROM sluice_test_precompiled)
  set_target_properties(${name} PROPERTIES UNITY_BUILD_BATCH_SIZE 0)
  if(unit IN_LIST arg_LABELS)
    if(SLUICE_SANITIZE AND arg_ALSO_UNSANITIZED)
      target_compile_definitions(${name} PRIVATE SLUICE_SANITIZED)
    endif()
    if((SLUICE_SANITIZE AND arg_UNSANITIZED) OR NOT (SLUICE_UNIT_TESTS OR in_release))
      set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
      return()
    endif()
  endif()
  if(NOT arg_COST)
    set(arg_COST 120)
  endif()
  sluice_test_area(area)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS};${area}" COST ${arg_COST})
  foreach(label unit threads)
    if(label IN_LIST arg_LABELS)
      add_dependencies(sluice_${label}_tests ${name})
    endif()
  endforeach()
  if(unit IN_LIST arg_LABELS)
    if(NOT TARGET sluice_unit_tests_${area})
      add_custom_target(sluice_unit_tests_${area})
    endif()
    add_dependencies(sluice_unit_tests_${area} ${name})
  endif()
endfunction()

# sluice_run_alone(TEST...): these measure time, so nothing runs beside them. `ctest -L alone` runs them.
function(sluice_run_alone)
  foreach(test ${ARGN})
    set_property(TEST ${test} APPEND PROPERTY LABELS alone)
    set_property(TEST ${test} PROPERTY RUN_SERIAL ON)
  endforeach()
endfunction()

# A test for which this machine lacks a program: CTest shows that it was skipped, instead of nothing.
function(sluice_add_skipped_test name why)
  cmake_parse_arguments(arg "" "" "LABELS" ${ARGN})
  add_test(NAME ${name} COMMAND sh -c "echo 'skipped: ${why}'; exit 77")
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" SKIP_RETURN_CODE 77)
endfunction()

function(sluice_install_package)
  include(CMakePackageConfigHelpers)
  set(where ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)
  install(EXPORT sluiceTargets NAMESPACE sluice:: DESTINATION ${where})
  configure_package_config_file(${PROJECT_SOURCE_DIR}/core/cmake/sluiceConfig.cmake.in
    ${PROJECT_BINARY_DIR}/sluiceConfig.cmake INSTALL_DESTINATION ${where})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/sluiceConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/sluiceConfig.cmake
    ${PROJECT_BINARY_DIR}/sluiceConfigVersion.cmake
    ${PROJECT_SOURCE_DIR}/core/cmake/sluice_policy_plugin.cmake
    ${PROJECT_SOURCE_DIR}/core/cmake/sluice_policy_plugin.map DESTINATION ${where})
endfunction()
