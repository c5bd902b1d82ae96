# SPDX-License-Identifier: Apache-2.0
# Everything from outside, in one place, with its floor (Debian 12 packages).

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
# Module mode, and before gRPC: Debian's protobuf has no config file and gRPC would look for one.
find_package(Protobuf 3.21 REQUIRED)
find_package(absl REQUIRED)             # 20220623
find_package(gRPC 1.51 CONFIG REQUIRED)
find_package(prometheus-cpp REQUIRED)   # 1.0; its package states no version
find_package(yaml-cpp 0.7 REQUIRED)
if(NOT TARGET yaml-cpp::yaml-cpp AND TARGET yaml-cpp)
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()
find_package(OpenSSL 3.0 REQUIRED)
find_package(CURL 7.85 REQUIRED)        # the member list of Kubernetes
find_package(RocksDB 7.8 CONFIG REQUIRED)
find_package(ucx CONFIG QUIET)          # 1.13; without it transport/ucx is left out
if(TARGET ucx::ucp)
  set(CAIRN_HAS_UCX ON)
else()
  set(CAIRN_HAS_UCX OFF)
  message(STATUS "UCX not found: the ucx transport is not built")
endif()
pkg_check_modules(liburing QUIET IMPORTED_TARGET liburing>=2.3)
if(NOT TARGET PkgConfig::liburing)      # without it threads move the bytes of drives
  message(STATUS "liburing not found: the engine over io_uring is not built")
endif()

if(CAIRN_TESTS)
  find_package(GTest 1.12 REQUIRED)
  find_package(benchmark 1.7 REQUIRED)
  include(GoogleTest)
endif()

# The virtual environment of `make deps` when it is there, else the system's Python.
if(EXISTS ${PROJECT_SOURCE_DIR}/build/venv/bin/python)
  set(CAIRN_PYTHON ${PROJECT_SOURCE_DIR}/build/venv/bin/python)
else()
  find_program(CAIRN_PYTHON python3 REQUIRED)
endif()
