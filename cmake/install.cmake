# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` leaves, by component:
#   programs  bin/cairnd, bin/cairnctl, and the UCX module that they open
#   c         libcairn.so (with the number of the C ABI), its headers, and pkg-config's cairn.pc
#   sdk       the C++ SDK as static libraries, their headers, and the package for find_package(cairn): cairn::client
# Headers keep the paths that the tree includes them by, below include/cairn.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/cairn)
set(headers ${CMAKE_INSTALL_INCLUDEDIR}/cairn)

# TARGET and all of ours that it is linked from.
function(_cairn_closure target result)
  get_target_property(libraries ${target} INTERFACE_LINK_LIBRARIES)
  set(found ${${result}} ${target})
  foreach(library IN LISTS libraries)
    string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" library ${library})
    if(library MATCHES "^cairn_" AND NOT library IN_LIST found)
      set(closure ${found})
      _cairn_closure(${library} closure)
      set(found ${closure})
    endif()
  endforeach()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

install(TARGETS cairnd cairnctl RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
if(TARGET cairn_ucx)
  install(TARGETS cairn_ucx LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT programs)
endif()

install(TARGETS cairn LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT c)
install(DIRECTORY client/c/ DESTINATION ${headers}/client/c COMPONENT c
  FILES_MATCHING PATTERN "cairn*.h")
configure_file(cmake/cairn.pc.in cairn.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/cairn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT c)

set(sdk)
_cairn_closure(cairn_client sdk)
foreach(library IN LISTS sdk)
  string(REGEX REPLACE "^cairn_" "" name ${library})
  set_target_properties(${library} PROPERTIES EXPORT_NAME ${name})
endforeach()
install(TARGETS ${sdk} EXPORT cairn
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT sdk
  FILE_SET HEADERS DESTINATION ${headers} COMPONENT sdk)
install(DIRECTORY ${PROJECT_BINARY_DIR}/proto/generated/ DESTINATION ${headers} COMPONENT sdk
  FILES_MATCHING PATTERN "*.h")
install(EXPORT cairn NAMESPACE cairn:: FILE cairn-targets.cmake DESTINATION ${package} COMPONENT sdk)

# All that is installed, and nothing else.
add_custom_target(programs DEPENDS cairnd cairnctl cairn ${sdk})
if(TARGET cairn_ucx)
  add_dependencies(programs cairn_ucx)
endif()

set(find_cuda)
if(CMAKE_CUDA_COMPILER)
  set(find_cuda "find_dependency(CUDAToolkit)")  # for its static runtime
endif()
configure_package_config_file(cmake/cairn-config.cmake.in cairn-config.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(cairn-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cairn-config.cmake ${PROJECT_BINARY_DIR}/cairn-config-version.cmake
  DESTINATION ${package} COMPONENT sdk)
