# SPDX-License-Identifier: Apache-2.0
# One call per target; DEPS are the arrows. The include root of all targets is the repository root.
#
#   cairn_library(NAME cairn_base SRCS log.cc HDRS log.h DEPS absl::status PRIVATE_DEPS … [SEPARATE] [ALONE …])
#   cairn_binary (NAME cairnd SRCS main.cc DEPS …)                        -> bin/cairnd
#   cairn_test   (NAME base_test SRCS clock_test.cc log_test.cc DEPS cairn_base LABELS unit TIMEOUT 30
#                 [ENVIRONMENT "A=b" …] [ARGS …] [ONE_PROCESS | OWN_PROCESSES] [SHARDS 4] [ALONE …])
#   cairn_test_objects(NAME transport_suite SRCS … DEPS …)               -> DEPS of several cairn_test()
#   cairn_bench  (NAME cairn_codec_bench SRCS … DEPS …)                   -> bin/cairn_codec_bench
#   cairn_fuzz   (NAME frame SRCS frame_fuzz.cc DEPS …)    -> bin/fuzz_frame
#   cairn_python_test(NAME … SCRIPT x.py LABELS … TIMEOUT … [ENVIRONMENT …] [ARGS …])
#   cairn_proto_library(NAME cairn_proto_messages PROTOS cairn/v1/store.proto … [GRPC])

function(_cairn_link target visibility)
  target_include_directories(${target} ${visibility} $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_link_libraries(${target} ${visibility} ${ARGN})
endfunction()

# Compiles the sources of `target` together, 16 at a time and but for those that follow it: what they include is parsed once for
# all of them.
function(_cairn_unity target)
  if(CAIRN_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# A static library (an interface one if it has no SRCS). DEPS reach whoever links it; PRIVATE_DEPS do so at link time only.
# SEPARATE: sources name things alike, so none are compiled together; ALONE: these do, so they are not.
function(cairn_library)
  cmake_parse_arguments(ARG "SEPARATE" "NAME" "SRCS;HDRS;DEPS;PRIVATE_DEPS;ALONE" ${ARGN})
  if(ARG_SRCS)
    add_library(${ARG_NAME} STATIC ${ARG_SRCS})
    _cairn_link(${ARG_NAME} PUBLIC ${ARG_DEPS})
    target_link_libraries(${ARG_NAME} PRIVATE ${ARG_PRIVATE_DEPS})
    if(NOT ARG_SEPARATE)
      _cairn_unity(${ARG_NAME} ${ARG_ALONE})
    endif()
    # These folders use Abseil everywhere. codecs/ and kernels/ do not, and the rest is small.
    if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/(base|client|service|transport)(/|$)")
      cairn_parse_once(${ARG_NAME} LIBRARY NAME cairn_library_headers DEPS absl::any_invocable absl::flat_hash_map absl::span absl::statusor
        absl::str_format absl::strings absl::time HEADERS <absl/container/flat_hash_map.h> <absl/functional/any_invocable.h>
        <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/time/clock.h> <absl/time/time.h> <absl/types/span.h>
        <algorithm> <array> <atomic> <condition_variable> <functional> <map> <memory> <mutex> <optional> <set> <string> <thread> <variant>
        <vector>)
    endif()
    # These folders read no numbers out of bytes, so only `make asan` looks for misaligned ones there. It takes a fifth of the time to
    # compile.
    if(CAIRN_SANITIZE STREQUAL "address" AND NOT CAIRN_UBSAN_ALL
        AND CMAKE_CURRENT_SOURCE_DIR MATCHES "/service(/(front|get|index|members|peer|policy|put|remote|upkeep))?$")
      target_compile_options(${ARG_NAME} PRIVATE -fno-sanitize=alignment)
    endif()
    set(scope PUBLIC)
  else()
    add_library(${ARG_NAME} INTERFACE)
    _cairn_link(${ARG_NAME} INTERFACE ${ARG_DEPS} ${ARG_PRIVATE_DEPS})
    set(scope INTERFACE)
  endif()
  if(ARG_HDRS)
    target_sources(${ARG_NAME} ${scope} FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${ARG_HDRS})
  endif()
endfunction()

function(cairn_binary)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  _cairn_link(${ARG_NAME} PRIVATE ${ARG_DEPS})
endfunction()

# Adds to the list that is named `out` what makes the daemons of tests with `labels` start faster, unless it has an LD_PRELOAD of its own.
function(_cairn_add_lazy_pages out labels)
  if(labels MATCHES "^(e2e|fault)$" AND NOT CAIRN_SANITIZE AND NOT "${${out}}" MATCHES "LD_PRELOAD=")
    set(${out} "${${out}}" "LD_PRELOAD=${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/libcairn_lazy_pages.so" PARENT_SCOPE)
  endif()
endfunction()

function(_cairn_test_properties name labels timeout environment)
  if(NOT labels)
    message(FATAL_ERROR "test ${name} has no LABELS")
  endif()
  _cairn_add_lazy_pages(environment "${labels}")
  # GoogleTest passes a filter that selects nothing.
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout} ENVIRONMENT "${environment}"
    FAIL_REGULAR_EXPRESSION "Running 0 tests from 0 test suites")
endfunction()

# Parses the headers HEADERS once for all targets that call this with the same NAME, which are executables, or all libraries (LIBRARY).
# The headers need DEPS and are compiled with OPTIONS. Use no other precompiled headers.
function(cairn_parse_once target)
  if(NOT CAIRN_UNITY)
    return()
  endif()
  cmake_parse_arguments(ARG "LIBRARY" "NAME" "HEADERS;DEPS;OPTIONS" ${ARGN})
  if(NOT TARGET ${ARG_NAME})
    set(main ${PROJECT_BINARY_DIR}/parse_once.cc)
    file(CONFIGURE OUTPUT ${main} CONTENT "int main() {}\n")
    if(ARG_LIBRARY)
      add_library(${ARG_NAME} OBJECT EXCLUDE_FROM_ALL ${main})
    else()
      add_executable(${ARG_NAME} EXCLUDE_FROM_ALL ${main})
    endif()
    _cairn_link(${ARG_NAME} PRIVATE ${ARG_DEPS})
    target_compile_options(${ARG_NAME} PRIVATE ${ARG_OPTIONS})
    target_precompile_headers(${ARG_NAME} PRIVATE ${ARG_HEADERS})
    # ccache would preprocess the headers with the last result of this, and so find the last result again.
    set_target_properties(${ARG_NAME} PROPERTIES CXX_COMPILER_LAUNCHER "")
  endif()
  target_compile_options(${target} PRIVATE ${ARG_OPTIONS})
  target_precompile_headers(${target} REUSE_FROM ${ARG_NAME})
endfunction()

# A test of a daemon includes the SDK and the generated messages, which take half of its time to compile. It waits more than it
# computes, so it is not optimized. So are unit tests with sanitizers, which take a third less time to compile. What unit tests of
# service/ test is in libraries, which have both sanitizers; the tests themselves have AddressSanitizer alone, for a third less again.
function(_cairn_test_headers target)
  set(headers <gmock/gmock.h> <gtest/gtest.h> <absl/status/statusor.h>)
  if("cairn_test_daemon" IN_LIST ARGN)
    set(options -O1)
    if(NOT CAIRN_SANITIZE)
      set(options -O0 -U_FORTIFY_SOURCE)  # which wants optimization
    endif()
    cairn_parse_once(${target} NAME cairn_daemon_test_headers OPTIONS ${options} DEPS cairn_client cairn_test_daemon GTest::gmock GTest::gtest
      HEADERS ${headers} <grpcpp/grpcpp.h> ${PROJECT_SOURCE_DIR}/client/cpp/client.h ${PROJECT_SOURCE_DIR}/client/cpp/space.h
        ${PROJECT_SOURCE_DIR}/tests/e2e/daemon/daemon_process.h)
  elseif(CAIRN_SANITIZE AND "unit" IN_LIST ARG_LABELS)
    if(CMAKE_CURRENT_SOURCE_DIR MATCHES "tests/unit/service" AND CAIRN_SANITIZE STREQUAL "address")
      target_compile_options(${target} PRIVATE -fno-sanitize=undefined)
    endif()
    cairn_parse_once(${target} NAME cairn_unit_test_headers OPTIONS -O0 DEPS GTest::gmock GTest::gtest HEADERS ${headers})
  elseif(NOT CAIRN_SANITIZE AND CMAKE_CURRENT_SOURCE_DIR MATCHES "tests/(conformance/(io|members|tier|transport)|fault|property/store|unit/service/codec)")
    # These wait, too.
    cairn_parse_once(${target} NAME cairn_plain_test_headers OPTIONS -O0 -U_FORTIFY_SOURCE DEPS GTest::gmock GTest::gtest
      HEADERS ${headers})
  else()
    cairn_parse_once(${target} NAME cairn_test_headers DEPS GTest::gmock GTest::gtest HEADERS ${headers})
  endif()
endfunction()

# Tests that several binaries have, as DEPS of each: they are compiled once.
function(cairn_test_objects)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_library(${ARG_NAME} OBJECT ${ARG_SRCS})
  # As executables are compiled, whose precompiled headers they use.
  set_target_properties(${ARG_NAME} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${ARG_NAME} PRIVATE -fPIE)
  _cairn_link(${ARG_NAME} PUBLIC ${ARG_DEPS} GTest::gmock GTest::gtest)
  _cairn_test_headers(${ARG_NAME} ${ARG_DEPS})
  _cairn_unity(${ARG_NAME})
endfunction()

# A GoogleTest binary, best one for all tests of a folder. Each TEST is one ctest entry and a process of its own, so a skipped one
# is reported as skipped; ONE_PROCESS makes the binary one entry instead, for suites whose set-up is dear. In `make test`, unit tests
# are one entry for each binary, too, or SHARDS of them for one that takes long: with sanitizers, most tests take less time than their
# process takes to start. OWN_PROCESSES: but not these, which change what threads of other tests see. TIMEOUT is in seconds per entry.
# ALONE as in cairn_library().
function(cairn_test)
  cmake_parse_arguments(ARG "ONE_PROCESS;OWN_PROCESSES" "NAME;TIMEOUT;SHARDS" "SRCS;DEPS;LABELS;ENVIRONMENT;ARGS;ALONE" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  if(NOT ARG_LABELS)
    message(FATAL_ERROR "test ${ARG_NAME} has no LABELS")
  endif()
  if(CAIRN_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 5")
  endif()
  add_executable(${ARG_NAME} ${ARG_SRCS})
  _cairn_link(${ARG_NAME} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gmock_main)
  _cairn_test_headers(${ARG_NAME} ${ARG_DEPS})
  _cairn_unity(${ARG_NAME} ${ARG_ALONE})
  if("unit" IN_LIST ARG_LABELS)
    set_property(GLOBAL APPEND PROPERTY CAIRN_UNIT_TARGETS ${ARG_NAME})
    if(CAIRN_SANITIZE STREQUAL "address" AND NOT CAIRN_UBSAN_ALL AND NOT ARG_OWN_PROCESSES)
      if(ARG_SHARDS)
        foreach(shard RANGE 1 ${ARG_SHARDS})
          math(EXPR index "${shard} - 1")
          add_test(NAME ${ARG_NAME}.${shard} COMMAND ${ARG_NAME} ${ARG_ARGS})
          _cairn_test_properties(${ARG_NAME}.${shard} "${ARG_LABELS}" ${ARG_TIMEOUT}
            "${ARG_ENVIRONMENT};GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${index}")
          set_tests_properties(${ARG_NAME}.${shard} PROPERTIES COST 100)  # starts first
        endforeach()
        return()
      endif()
      set(ARG_ONE_PROCESS ON)
    endif()
    # `make test` compiles unit tests once, with sanitizers.
    if(CMAKE_BUILD_TYPE STREQUAL "Release")
      set_target_properties(${ARG_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
  endif()
  if(ARG_ONE_PROCESS)
    add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} ${ARG_ARGS})
    _cairn_test_properties(${ARG_NAME} "${ARG_LABELS}" ${ARG_TIMEOUT} "${ARG_ENVIRONMENT}")
    return()
  endif()
  # gtest_discover_tests splits a list-valued property, hence the escaping of the separators. Values are
  # not part of a test's name: a pointer's would change it from run to run.
  string(REPLACE ";" "\\;" labels "${ARG_LABELS}")
  _cairn_add_lazy_pages(ARG_ENVIRONMENT "${ARG_LABELS}")
  string(REPLACE ";" "\\;" environment "${ARG_ENVIRONMENT}")
  set(properties TIMEOUT ${ARG_TIMEOUT} LABELS "${labels}")
  if(environment)
    list(APPEND properties ENVIRONMENT "${environment}")
  endif()
  gtest_discover_tests(${ARG_NAME} TEST_PREFIX ${ARG_NAME}. EXTRA_ARGS ${ARG_ARGS} NO_PRETTY_VALUES
    DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES ${properties})
endfunction()

function(cairn_python_test)
  cmake_parse_arguments(ARG "" "NAME;SCRIPT;TIMEOUT" "LABELS;ENVIRONMENT;ARGS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  if(CAIRN_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 5")
  endif()
  add_test(NAME ${ARG_NAME} COMMAND ${CAIRN_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_SCRIPT} ${ARG_ARGS}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # Exit code 77 says: skipped, with the reason printed.
  set_tests_properties(${ARG_NAME} PROPERTIES SKIP_RETURN_CODE 77)
  _cairn_test_properties(${ARG_NAME} "${ARG_LABELS}" ${ARG_TIMEOUT} "${ARG_ENVIRONMENT}")
endfunction()

function(cairn_bench)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  _cairn_link(${ARG_NAME} PRIVATE ${ARG_DEPS} benchmark::benchmark)
  # `make test` needs none of them; the target `benchmarks` is all of them.
  set_target_properties(${ARG_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
  set_property(GLOBAL APPEND PROPERTY CAIRN_BENCH_TARGETS ${ARG_NAME})
endfunction()

# SRCS define LLVMFuzzerTestOneInput. The preset 'fuzz' links libFuzzer; every other one links a main that replays the files and
# folders it is given, and ctest replays tests/fuzz/corpus/<name>/ with it.
function(cairn_fuzz)
  cmake_parse_arguments(ARG "" "NAME;MAX_LEN" "SRCS;DEPS" ${ARGN})
  set(target fuzz_${ARG_NAME})
  add_executable(${target} ${ARG_SRCS})
  _cairn_link(${target} PRIVATE ${ARG_DEPS})
  set(corpus ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${ARG_NAME})
  set(arguments ${corpus})
  if(CAIRN_FUZZ)
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
    set_property(GLOBAL APPEND PROPERTY CAIRN_FUZZ_TARGETS ${target})
    list(PREPEND arguments -runs=0)
    if(ARG_MAX_LEN)
      file(WRITE ${CMAKE_BINARY_DIR}/fuzz/${ARG_NAME}.options "-max_len=${ARG_MAX_LEN}")  # read by .ci/fuzz
    endif()
  else()
    target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests/support/fuzz_replay_main.cc)
  endif()
  add_test(NAME ${target}.corpus COMMAND ${target} ${arguments})
  _cairn_test_properties(${target}.corpus fuzz 120 "")
endfunction()

# Generates C++ from PROTOS (paths under the current folder, which is the import root) into the build tree. Makes NAME (messages,
# included as "cairn/v1/store.pb.h") and, with GRPC, NAME_grpc ("cairn/v1/store.grpc.pb.h").
function(cairn_proto_library)
  cmake_parse_arguments(ARG "GRPC" "NAME" "PROTOS" ${ARGN})
  set(out ${CMAKE_CURRENT_BINARY_DIR}/generated)
  file(MAKE_DIRECTORY ${out})
  foreach(proto IN LISTS ARG_PROTOS)
    string(REGEX REPLACE "\\.proto$" "" stem ${proto})
    set(messages ${out}/${stem}.pb.cc ${out}/${stem}.pb.h)
    add_custom_command(OUTPUT ${messages} DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${proto}
      COMMAND protobuf::protoc --cpp_out=${out} -I ${CMAKE_CURRENT_SOURCE_DIR} ${proto} VERBATIM)
    list(APPEND message_sources ${messages})
    if(ARG_GRPC)
      set(services ${out}/${stem}.grpc.pb.cc ${out}/${stem}.grpc.pb.h)
      add_custom_command(OUTPUT ${services} DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${proto}
        COMMAND protobuf::protoc --grpc_out=${out} --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>
                -I ${CMAKE_CURRENT_SOURCE_DIR} ${proto} VERBATIM)
      list(APPEND service_sources ${services})
    endif()
  endforeach()
  add_library(${ARG_NAME} STATIC ${message_sources})
  set(options -w)
  if(CAIRN_SANITIZE STREQUAL "address")
    # protoc's code is not ours to check for undefined behaviour, and takes a third of the time to compile without.
    list(APPEND options -fno-sanitize=undefined -O0 -g0)
  endif()
  target_compile_options(${ARG_NAME} PRIVATE ${options})
  target_include_directories(${ARG_NAME} SYSTEM PUBLIC
    $<BUILD_INTERFACE:${out}> $<INSTALL_INTERFACE:include/cairn>)  # as cmake/install.cmake has it
  target_link_libraries(${ARG_NAME} PUBLIC protobuf::libprotobuf)
  if(ARG_GRPC)
    add_library(${ARG_NAME}_grpc STATIC ${service_sources})
    target_compile_options(${ARG_NAME}_grpc PRIVATE ${options})
    _cairn_unity(${ARG_NAME}_grpc)  # messages name things alike
    target_link_libraries(${ARG_NAME}_grpc PUBLIC ${ARG_NAME} gRPC::grpc++)
  endif()
endfunction()

# Sources that look into a map of protobuf. Under TSan its headers give maps one more field, which the library as packaged has not:
# these sources are compiled alone and as if without TSan's macro.
function(cairn_reads_protobuf_maps)
  if(CAIRN_SANITIZE STREQUAL "thread")
    set_source_files_properties(${ARGN} PROPERTIES
      COMPILE_OPTIONS -U__SANITIZE_THREAD__ SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()
