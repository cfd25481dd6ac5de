# Debian packages: `cpack -G DEB` in a build directory that has everything built. Components of an installation
# are packages:
#   embed   libsluice0.1, the library that programs embed (adapters/embed), for both event loops
#   client  libsluice-client0, the C library of clients
#   kfd     libsluice-kfd0, the C API of the driver's queues
#   python  python3-sluice, the same for Python
#   dev     libsluice-dev: headers, static libraries, CMake and pkg-config files
#   tools   sluice-tools: the programs, the service, manual and completions
set(abi ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(version ${PROJECT_VERSION})
set(debian_embed libsluice${abi})
set(debian_client libsluice-client0)
set(debian_kfd libsluice-kfd0)
set(debian_python python3-sluice)
set(debian_dev libsluice-dev)
set(debian_tools sluice-tools)
set(components embed client kfd python dev tools)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME sluice)
set(CPACK_PACKAGE_VENDOR "sluice")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "scheduler that lets online work preempt offline work on AMD GPUs")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "The sluice authors <maintainers@sluice.invalid>" CACHE STRING
  "Maintainer of the Debian packages, as 'Name <address>'")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_COMPONENT_EMBED_DESCRIPTION "A program that serves a model can use libsluice to suspend the GPU queues of
best-effort processes while it has requests, and to resume them afterwards.
It works with the stock KFD driver. There are two variants: libsluice, whose
event loop uses io_uring, and libsluice-epoll.")
set(CPACK_DEBIAN_EMBED_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_EMBED_PACKAGE_RECOMMENDS "sluice-tools (= ${version})")
# A host and its agent are of one build.
set(CPACK_DEBIAN_EMBED_PACKAGE_BREAKS "sluice-tools (<< ${version}), sluice-tools (>> ${version})")
set(CPACK_DEBIAN_EMBED_PACKAGE_DEPENDS "libsluice-client0 (>= ${PROJECT_VERSION})")

set(CPACK_COMPONENT_CLIENT_DESCRIPTION "A program can use libsluice_client to notify the scheduler, in another
process, when it has work for the GPU. The library is written in C and depends
only on libc.")
set(CPACK_DEBIAN_CLIENT_PACKAGE_SECTION libs)

set(CPACK_COMPONENT_KFD_DESCRIPTION "A program can use libsluice_kfd to list, suspend and resume GPU queues of
other processes, through the debug interface of the stock KFD driver.")
set(CPACK_DEBIAN_KFD_PACKAGE_SECTION libs)

set(CPACK_COMPONENT_PYTHON_DESCRIPTION "A Python server can use the module sluice to notify the scheduler, in another
process, when it has work for the GPU.")
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3:any, libsluice-client0 (>= ${PROJECT_VERSION})")

set(CPACK_COMPONENT_DEV_DESCRIPTION "Headers, static libraries, CMake and pkg-config files for building programs
that embed the sluice scheduler or are its clients, and for building policies.")
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
# What is declared in terms of Boost is compiled into the libraries, so it must be the same Boost.
set(boost libboost${Boost_VERSION_MAJOR}.${Boost_VERSION_MINOR}-dev)
string(JOIN ", " CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libsluice${abi} (= ${version})"
  "libsluice-client0 (= ${version})" "libsluice-kfd0 (= ${version})" ${boost} liburing-dev libseccomp-dev libspdlog-dev
  libfmt-dev pkg-config)

set(CPACK_COMPONENT_TOOLS_DESCRIPTION "This package contains the command sluice, which is also the daemon, its
systemd service, and sluice-agent, the only privileged program, which suspends
and resumes queues. It also contains sluice-sim, a simulated GPU for trials.

The package does not start the service. The service only observes until you
set the mode to enforce in /etc/sluice/sluice.toml.")
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION admin)
string(JOIN ", " CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "libcap2-bin" "procps" "systemd | systemd-standalone-sysusers"
  "systemd | systemd-standalone-tmpfiles")
set(CPACK_DEBIAN_TOOLS_PACKAGE_RECOMMENDS "fuse3")
set(CPACK_DEBIAN_TOOLS_PACKAGE_SUGGESTS "python3")

set(folder ${CMAKE_CURRENT_LIST_DIR}/debian)
set(made ${PROJECT_BINARY_DIR}/debian)
configure_file(${folder}/changelog.in ${made}/changelog @ONLY)
execute_process(COMMAND gzip -9nc ${made}/changelog OUTPUT_FILE ${made}/changelog.gz
  COMMAND_ERROR_IS_FATAL ANY)
foreach(component IN LISTS components)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${debian_${component}})
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${CPACK_COMPONENT_${upper}_DESCRIPTION}")
  # Debian's own files are no part of other installations.
  install(FILES ${folder}/copyright ${made}/changelog.gz
    DESTINATION share/doc/${debian_${component}} COMPONENT debian_${component} EXCLUDE_FROM_ALL)
  list(APPEND CPACK_COMPONENTS_ALL ${component} debian_${component})
  set(CPACK_COMPONENT_${upper}_GROUP ${component})
  set(CPACK_COMPONENT_DEBIAN_${upper}_GROUP ${component})
endforeach()
# The generator would call ldconfig from scripts, which Debian gave up for a trigger.
set(libraries_embed "libsluice ${abi}" "libsluice-epoll ${abi}")
set(libraries_client "libsluice_client 0")
set(libraries_kfd "libsluice_kfd 0")
foreach(component embed client kfd)
  string(TOUPPER ${component} upper)
  list(TRANSFORM libraries_${component} APPEND " ${debian_${component}} (>= ${PROJECT_VERSION})\n"
    OUTPUT_VARIABLE lines)
  string(CONCAT lines ${lines})
  file(CONFIGURE OUTPUT ${made}/${component}/shlibs CONTENT "${lines}" @ONLY)
  set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA ${made}/${component}/shlibs ${folder}/triggers)
endforeach()
foreach(script preinst postinst prerm postrm)
  list(APPEND CPACK_DEBIAN_TOOLS_PACKAGE_CONTROL_EXTRA ${folder}/${script})
endforeach()
list(APPEND CPACK_DEBIAN_TOOLS_PACKAGE_CONTROL_EXTRA ${folder}/conffiles)

# The configuration of the service: what DAEMON.md changes for it, and a policy that a daemon without capabilities
# can follow, for those whom its socket is for.
file(READ ${PROJECT_SOURCE_DIR}/adapters/node/sluice.toml text)
function(say former now)
  string(FIND "${text}" "${former}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "sluice.toml lacks the text '${former}', which this script replaces")
  endif()
  string(REPLACE "${former}" "${now}" text "${text}")
  set(text "${text}" PARENT_SCOPE)
endfunction()
say("\nsocket_group = \"\"            #" "\nsocket_group = \"sluice-clients\"  #")
say("\njobs = \"log\"                 #" "\njobs = \"/var/log/sluice/jobs\"   #")
say("\nmay_claim_online = { users = [\"@self\"], groups = []," "\nmay_claim_online = { users = [\"@self\"], groups = [\"sluice-clients\"],")
string(REGEX REPLACE "(\n\\[policy\\])\n.*(\n\n# Which processes)" "\\1
name = \"fixed_timeslice\"     # clients in group sluice-clients announce their work
slice = \"20ms\"               # shortest hold after work has begun
release = \"client_done\"      # resume offline work after the slice, when no client has work in flight
# name = \"pointer_polling\"   # detect online work without clients; needs the capabilities in transparent.conf\\2"
  text "${text}")
file(CONFIGURE OUTPUT ${made}/sluice.toml CONTENT "${text}" @ONLY)
install(FILES ${made}/sluice.toml DESTINATION /etc/sluice COMPONENT debian_tools EXCLUDE_FROM_ALL)

include(CPack)
