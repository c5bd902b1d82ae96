# SPDX-License-Identifier: Apache-2.0
# Language, optimisation, warning and sanitizer flags of every target.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# The C ABI is a shared library made of these static ones, and only the C ABI leaves it.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

# RelWithDebInfo keeps CAIRN_DCHECK; Release drops it. Both optimise alike, so that what is tested is what runs.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

# Bytes of the image format are the same on every backend only if no compiler fuses a multiply and an add.
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off>)
# Some packages ask their users for it, and what shares precompiled headers has to agree.
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-pthread>)
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Wall> $<$<COMPILE_LANGUAGE:C,CXX>:-Wextra>)
if(CAIRN_WERROR)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()

# What a memory error can be used for: checked by tests/style/hardening.py in the built files. Sanitizers and fuzzers find such errors
# themselves, and nvcc takes none of these.
include(CheckPIESupported)
check_pie_supported()
if(CAIRN_HARDENING AND NOT CAIRN_SANITIZE AND NOT CAIRN_FUZZ)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fstack-protector-strong>)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:SHELL:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2>")
  add_link_options(-Wl,-z,relro,-z,now,-z,noexecstack)
endif()

if(CAIRN_SANITIZE)
  # Lines in stack traces, at less than half the time to compile of -O2 -g. The unit tests of `make test` run for two minutes and are
  # compiled for seven: what is not optimized takes a third less to compile.
  if(CAIRN_SANITIZE STREQUAL "address" AND NOT CAIRN_UBSAN_ALL)
    add_compile_options(-O0 -g1)
  else()
    add_compile_options(-O1 -g1)
  endif()
endif()
if(CAIRN_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
  if(NOT CAIRN_UBSAN_ALL)
    # AddressSanitizer reports an access through a null pointer or outside an object too. These checks take a fifth of the time to
    # compile. `make asan`, `make kernels-check` and `make fuzz` have them, for what only they find: a null pointer that is never
    # read, such as memcpy()'s for 0 bytes, an object of another class, pointer arithmetic that wraps.
    add_compile_options(-fno-sanitize=null,nonnull-attribute,returns-nonnull-attribute,object-size,vptr,pointer-overflow)
  endif()
  # libstdc++ 12 headers trip this one under -fsanitize.
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
elseif(CAIRN_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
elseif(CAIRN_SANITIZE)
  message(FATAL_ERROR "CAIRN_SANITIZE is '${CAIRN_SANITIZE}'; expected address, thread or empty")
endif()
if(CAIRN_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "CAIRN_FUZZ needs clang; use the preset 'fuzz'")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# Every build folder sits at build/NAME, so paths relative to it are equal and the cache is shared between them.
find_program(CAIRN_CCACHE ccache)
if(CAIRN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # It does not cache what includes precompiled headers, unless it may take times and defines in them as they are.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
      CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros ${CAIRN_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
find_program(CAIRN_MOLD mold)
if(CAIRN_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

if(CAIRN_CUDA)
  include(CheckLanguage)
  if(EXISTS /usr/local/cuda/bin/nvcc AND NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90)
    set(has_default_architectures ON)
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(has_default_architectures AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
      list(APPEND CMAKE_CUDA_ARCHITECTURES 100)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    # CMake 3.25 knows no C++20 dialect of nvcc and would drop the standard.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    find_package(CUDAToolkit REQUIRED)
    # What codecs/numbers/math.h asks for.
    add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:SHELL:--fmad=false -ftz=false -prec-div=true -Xcompiler=-ffp-contract=off>")
  else()
    message(STATUS "CUDA asked for, but no nvcc found: kernels are built as 'absent'")
  endif()
endif()
