# Included after project(), by the root and by a chapter built alone: dependencies, common/, and the
# functions that targets are made with. Including it twice is harmless.
include_guard(GLOBAL)
get_filename_component(OOMLAB_ROOT "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)

set(OOMLAB_VERSION 0.1.0)
set(OOMLAB_SANITIZE "" CACHE STRING "Sanitizer of the whole build: empty, thread, or address")
option(OOMLAB_CHECK "Host runtime in check mode: several threads a block, and barriers, as ThreadSanitizer sees them" OFF)
option(OOMLAB_NATIVE "Host backend: compile for this machine's instruction set" ON)
set(OOMLAB_KERNEL_ARCHITECTURES "" CACHE STRING "CUDA architectures of what has kernels, common/ and the lessons; empty: those of everything else")
option(OOMLAB_TESTS "Build the tests" ON)
option(OOMLAB_LESSONS "Build each chapter's lesson" ON)
option(OOMLAB_MPI "Chapters on several devices can be started by mpirun, where MPI is installed" ON)
option(OOMLAB_UNITED "Compile several sources in one go: a whole build takes less time, a small change more" ON)
option(OOMLAB_BENCH "Build the micro-benchmarks" ON)
option(OOMLAB_PLANNER "CUDA backend: build the programs in bin/plan, too, which answer --plan" ON)
option(OOMLAB_ONLY_FIT "Only bench/fit and the room that plans, for any machine: what the wheel takes" OFF)
if(OOMLAB_ONLY_FIT)
  set(OOMLAB_NATIVE OFF)
  set(OOMLAB_TESTS OFF)
endif()

if(OOMLAB_BACKEND STREQUAL "cuda")
  enable_language(CUDA)
  if(CMAKE_CUDA_ARCHITECTURES STREQUAL "native")
    include("${OOMLAB_ROOT}/cmake/OomlabArchitectures.cmake")
    execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --list-gpu-arch OUTPUT_VARIABLE known COMMAND_ERROR_IS_FATAL ANY)
    oomlab_choose_architectures(CMAKE_CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES_NATIVE}" "${known}")
  endif()
  find_package(CUDAToolkit 12.4 REQUIRED)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
# nvcc puts its own -O behind what -Xcompiler says, and both are for the host's code alone: this way a target can say something else.
string(REPLACE "-O3" "-Xcompiler=-O3" CMAKE_CUDA_FLAGS_RELEASE "${CMAKE_CUDA_FLAGS_RELEASE}")
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
if(OOMLAB_BACKEND STREQUAL "cuda" AND NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  # CMake 3.25 does not know yet that nvcc has C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(OOMLAB_PROGRAMS "${CMAKE_BINARY_DIR}/bin" CACHE PATH "Where the programs go")
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${OOMLAB_PROGRAMS}")
set(THREADS_PREFER_PTHREAD_FLAG ON)

include("${OOMLAB_ROOT}/cmake/OomlabDependencies.cmake")

# Flags shared by every target of ours.
add_library(oomlab_flags INTERFACE)
target_compile_features(oomlab_flags INTERFACE cxx_std_20)
target_compile_options(oomlab_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno>
  $<$<COMPILE_LANGUAGE:CUDA>:--Werror=cross-execution-space-call;-Xcompiler=-Wall;-Xcompiler=-Wextra;--expt-relaxed-constexpr>)
# fmt 9 takes nvcc for a compiler without constexpr, and then its own consteval checks do not compile.
target_compile_definitions(oomlab_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
if(OOMLAB_BACKEND STREQUAL "host" AND OOMLAB_NATIVE)
  target_compile_options(oomlab_flags INTERFACE -march=native)
  # Kernels full of exponentials gain a tenth from the widest vectors; g++ takes half of them unless it is told.
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag(-mprefer-vector-width=512 OOMLAB_HAS_WIDE_VECTORS)
  if(OOMLAB_HAS_WIDE_VECTORS)
    target_compile_options(oomlab_flags INTERFACE -mprefer-vector-width=512)
  endif()
  # GCC 12.2 copies constants wrongly in pieces of 32 or 64 bytes, with AVX-512 at any level from -O1 on: where all behind the first 16
  # bytes is zero, it repeats these instead. std::vector<std::uint64_t>{7, 7, 0, 0} is 7 7 7 7. Pieces of 16 bytes are right. What this
  # does not change is how loops are vectorised. (tests/plan/constants_test.cpp looks.) Targets with the property OOMLAB_WIDE_PIECES are
  # kernels alone, which clear large arrays of sums, and have no such constants.
  check_cxx_compiler_flag("-mmove-max=128 -mstore-max=128" OOMLAB_HAS_NARROW_PIECES)
  if(OOMLAB_HAS_NARROW_PIECES)
    target_compile_options(oomlab_flags INTERFACE "$<$<NOT:$<BOOL:$<TARGET_PROPERTY:OOMLAB_WIDE_PIECES>>>:-mmove-max=128;-mstore-max=128>")
  endif()
endif()
if(OOMLAB_SANITIZE)
  # A report names functions. -DCMAKE_CXX_FLAGS=-g1 adds files and lines, for a twentieth more time to compile and twice as much to link.
  target_compile_options(oomlab_flags INTERFACE -fsanitize=${OOMLAB_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(oomlab_flags INTERFACE -fsanitize=${OOMLAB_SANITIZE})
else()  # the same sources: one build warns of them, and one where what a sanitizer adds confuses no warning
  target_compile_options(oomlab_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra>)
endif()

if(OOMLAB_BACKEND STREQUAL "host")  # binutils' other linker takes less than half the time, where it is installed
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=gold OOMLAB_HAS_GOLD)
  target_link_options(oomlab_flags INTERFACE $<$<BOOL:${OOMLAB_HAS_GOLD}>:-fuse-ld=gold>)
endif()

if(OOMLAB_BACKEND STREQUAL "host" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # One tenth of the compile time is GCC collecting its garbage; a gigabyte (in KiB) makes that superfluous.
  target_compile_options(oomlab_flags INTERFACE --param=ggc-min-heapsize=1048576)
endif()

# oomlab_plain_cpp(target source...): a .cu file without kernels, which nvcc would take three times as long to compile.
function(oomlab_plain_cpp target)
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES LANGUAGE CXX)
endfunction()

# .cu files are CUDA for nvcc, and plain C++ for the host runtime.
function(oomlab_sources target)
  foreach(source IN LISTS ARGN)
    if(OOMLAB_BACKEND STREQUAL "host" AND source MATCHES "\\.cu$")
      oomlab_plain_cpp(${target} "${source}")
    endif()
  endforeach()
  target_sources(${target} PRIVATE ${ARGN})
endfunction()

# oomlab_precompiled(name HEADERS... LINK ...): headers that are compiled once, and then only loaded by the targets that
# name it. Not in the cuda build, so a missing #include is found there.
function(oomlab_precompiled name)
  cmake_parse_arguments(arg "" "" "HEADERS;LINK" ${ARGN})
  if(OOMLAB_BACKEND STREQUAL "cuda")
    return()
  endif()
  set(empty "${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp")
  file(CONFIGURE OUTPUT "${empty}" CONTENT "")
  add_library(${name} OBJECT "${empty}")
  target_link_libraries(${name} PRIVATE oomlab_flags ${arg_LINK})
  target_precompile_headers(${name} PRIVATE ${arg_HEADERS})
endfunction()

function(oomlab_use_precompiled target name)
  if(TARGET ${name})
    target_precompile_headers(${target} REUSE_FROM ${name})
  endif()
endfunction()

# oomlab_library(name [OBJECT] SOURCES a.cu b.cpp LINK other... [PRECOMPILED name])
function(oomlab_library name)
  cmake_parse_arguments(arg "OBJECT" "PRECOMPILED" "SOURCES;LINK" ${ARGN})
  set(kind STATIC)
  if(arg_OBJECT)
    set(kind OBJECT)
  endif()
  add_library(${name} ${kind})
  oomlab_sources(${name} ${arg_SOURCES})
  target_include_directories(${name} PUBLIC "${OOMLAB_ROOT}/common")
  target_link_libraries(${name} PUBLIC oomlab_flags ${arg_LINK})
  set_target_properties(${name} PROPERTIES CUDA_SEPARABLE_COMPILATION OFF)
  if(OOMLAB_KERNEL_ARCHITECTURES AND NOT arg_OBJECT)
    set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${OOMLAB_KERNEL_ARCHITECTURES}")
  endif()
  if(arg_PRECOMPILED)
    oomlab_use_precompiled(${name} ${arg_PRECOMPILED})
  endif()
endfunction()

# oomlab_executable(name SOURCES ... LINK ...)
function(oomlab_executable name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name})
  oomlab_sources(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE oomlab_flags ${arg_LINK})
endfunction()

# oomlab_built_by_name(target...): what no test needs, as programs that only tests/run bench runs: that names what it needs. Not part
# of a whole build for the host, so that tests do not wait for it; of the cuda build it is.
function(oomlab_built_by_name)
  if(OOMLAB_BACKEND STREQUAL "host")
    set_target_properties(${ARGN} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

# oomlab_compiled_quickly(target level): for what takes longer to compile than to run. Kernels and the runtime are not;
# what stands around them is (-O1), and so are tests (-O0; on a GPU -O1, since there what a test computes by hand is in them, too). Under AddressSanitizer every access there calls a function
# instead of having its check inline.
function(oomlab_compiled_quickly target level)
  if(OOMLAB_SANITIZE STREQUAL "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE "SHELL:--param asan-instrumentation-with-call-threshold=0")
  endif()
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:${level}> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${level}>)
endfunction()

# oomlab_no_contraction(target): a product and a sum are rounded one after the other, on processors that could do both at once, too. What
# plans says the same to the last digit on every machine.
function(oomlab_no_contraction target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-ffp-contract=off>)
endfunction()

# oomlab_linked_statically(program): for machines with another C library, older or newer, where this one has the library's archive.
# Without it, C++'s libraries alone.
function(oomlab_linked_statically program)
  include(CheckLinkerFlag)
  check_linker_flag(CXX -static OOMLAB_HAS_STATIC)
  if(OOMLAB_HAS_STATIC)
    target_link_options(${program} PRIVATE -static)
  else()
    target_link_options(${program} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
endfunction()

# oomlab_united(target sources-at-once [TESTS]): compiles several sources in one go, which spares what their headers cost. In the cuda
# build of TESTS alone, so a missing #include of anything else is found there.
function(oomlab_united target batch)
  if(OOMLAB_UNITED AND (OOMLAB_BACKEND STREQUAL "host" OR "TESTS" IN_LIST ARGN))
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
  endif()
endfunction()

# oomlab_united_kernels(variable name sources-at-once): the same for the .cu files among the sources in `variable`, where nvcc compiles
# them: CMake unites C++ alone. They become files of the build that include them.
function(oomlab_united_kernels variable name batch)
  if(NOT OOMLAB_UNITED OR NOT OOMLAB_BACKEND STREQUAL "cuda")
    return()
  endif()
  set(kernels ${${variable}})
  list(FILTER kernels INCLUDE REGEX "\\.cu$")
  set(others ${${variable}})
  list(FILTER others EXCLUDE REGEX "\\.cu$")
  set(number 0)
  while(kernels)
    list(SUBLIST kernels 0 ${batch} together)
    list(REMOVE_ITEM kernels ${together})
    list(LENGTH together count)
    if(count EQUAL 1)
      list(APPEND others ${together})
      continue()
    endif()
    set(text "")
    foreach(source IN LISTS together)
      get_filename_component(source "${source}" ABSOLUTE)
      string(APPEND text "#include \"${source}\"\n")
    endforeach()
    set(united "${CMAKE_CURRENT_BINARY_DIR}/${name}_united_${number}.cu")
    file(CONFIGURE OUTPUT "${united}" CONTENT "${text}")
    list(APPEND others "${united}")
    math(EXPR number "${number} + 1")
  endwhile()
  set(${variable} ${others} PARENT_SCOPE)
endfunction()

# oomlab_alone_on_the_gpu(test...): tests of programs that compare free memory, or take most of it, and so must have the GPU
# to themselves, whatever ctest runs beside them.
function(oomlab_alone_on_the_gpu)
  if(OOMLAB_BACKEND STREQUAL "cuda")
    set_property(TEST ${ARGN} APPEND PROPERTY RESOURCE_LOCK gpu)
  endif()
endfunction()

# oomlab_on_one_core(test...): of the plain host build. These ask a whole program for bytes, words and files, which do not depend on how many
# threads run its blocks; ctest has a job for every core, and on a busy core each kernel would wait for the slower of its threads. Blocks
# side by side are looked at by the tests of kernels and by each chapter's QuickRun. oomlab_one_core(variable): the property, for tests
# that are found later.
function(oomlab_one_core variable)
  set(${variable} "" PARENT_SCOPE)
  if(OOMLAB_BACKEND STREQUAL "host" AND NOT OOMLAB_SANITIZE AND NOT OOMLAB_CHECK)
    set(${variable} ENVIRONMENT_MODIFICATION OMP_NUM_THREADS=set:1 PARENT_SCOPE)
  endif()
endfunction()
function(oomlab_on_one_core)
  oomlab_one_core(property)
  if(property)
    set_tests_properties(${ARGN} PROPERTIES ${property})
  endif()
endfunction()

# oomlab_whole_program_test(name COMMAND ... LABELS ... [ENVIRONMENT ...] [NIGHTLY | AT_NIGHT case...]): a GoogleTest program as one
# test. It writes which cases it had to test-cases/NAME.json, where tests/run counts them. AT_NIGHT: these cases are NAME.night's.
function(oomlab_whole_program_test name)
  cmake_parse_arguments(arg "NIGHTLY" "" "COMMAND;LABELS;ENVIRONMENT;AT_NIGHT" ${ARGN})
  if(arg_AT_NIGHT AND NOT arg_NIGHTLY)
    list(JOIN arg_AT_NIGHT ":" cases)
    oomlab_whole_program_test(${name}.night COMMAND ${arg_COMMAND} "--gtest_filter=${cases}" LABELS ${arg_LABELS}
      ENVIRONMENT ${arg_ENVIRONMENT} NIGHTLY)
    list(APPEND arg_COMMAND "--gtest_filter=-${cases}")
  endif()
  set(when "")
  if(arg_NIGHTLY)
    set(when CONFIGURATIONS Nightly)
    list(APPEND arg_LABELS nightly)
  endif()
  add_test(NAME ${name} ${when} COMMAND ${arg_COMMAND})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT 3600
    ENVIRONMENT "GTEST_OUTPUT=json:${CMAKE_BINARY_DIR}/test-cases/${name}.json;${arg_ENVIRONMENT}")
endfunction()

# oomlab_test(name SOURCES ... [OPTIMISED ...] LINK ... [LABELS ...] [ENVIRONMENT NAME=value] [TIMEOUT s] [ONE_THREAD] [ON_ONE_CORE]
#             [ALSO_OTHERWISE] [NIGHTLY_IN_CHECK case...] [NIGHTLY_UNDER_ASAN case...])
# A GoogleTest program. OPTIMISED: sources that compute a lot, compiled with -Og, which takes a quarter less time than -O1 and runs as fast (-O1 for sanitizers).
# Every TEST in it is a ctest entry of its own; under a sanitizer, where starting a process costs more than most tests, the whole program
# is one. ONE_THREAD: it has one thread, and no kernel, so that there is nothing in it for check mode. ON_ONE_CORE: see
# oomlab_on_one_core(). ALSO_OTHERWISE: another test is the same program with settings of the host runtime that let more go wrong
# (NAME.deferred: deferred streams; NAME.rendezvous: sends that wait), which is enough for a sanitizer by day.
# NIGHTLY_...: cases (filters of GoogleTest) that a sanitizer runs at night only: those that take long there, and do again what others
# have done there already, in greater numbers or for another type; or that only plan.
function(oomlab_test name)
  cmake_parse_arguments(arg "ONE_THREAD;ON_ONE_CORE;ALSO_OTHERWISE" "TIMEOUT" "SOURCES;OPTIMISED;LINK;LABELS;ENVIRONMENT;NIGHTLY_IN_CHECK;NIGHTLY_UNDER_ASAN" ${ARGN})
  if(NOT OOMLAB_TESTS OR OOMLAB_CHECK AND arg_ONE_THREAD)
    return()
  endif()
  if(OOMLAB_BACKEND STREQUAL "cuda")
    list(APPEND arg_SOURCES ${arg_OPTIMISED})
    set(arg_OPTIMISED "")
  endif()
  oomlab_united_kernels(arg_SOURCES ${name} 4)
  oomlab_executable(${name} SOURCES ${arg_SOURCES} LINK ${arg_LINK} GTest::gtest_main)
  oomlab_compiled_quickly(${name} $<IF:$<STREQUAL:${OOMLAB_BACKEND},cuda>,-O1,-O0>)
  oomlab_united(${name} 8 TESTS)
  # How often to repeat what takes long: under AddressSanitizer everything takes ten times as long, in check mode a hundred times.
  # What only measures errors of arithmetic, the same in every build, is not repeated under a sanitizer.
  target_compile_definitions(${name} PRIVATE OOMLAB_ROUNDS=$<IF:$<BOOL:${OOMLAB_CHECK}>,2,$<IF:$<BOOL:${OOMLAB_SANITIZE}>,4,10>>
    OOMLAB_SANITIZED=$<BOOL:${OOMLAB_SANITIZE}>)
  if(arg_LINK MATCHES "oomlab_(cuda|memory|data|nn|harness|train|traces)")
    oomlab_use_precompiled(${name} oomlab_precompiled_tests)
  endif()
  if(arg_OPTIMISED)  # objects of their own, because sources with options of their own are not united
    oomlab_library(${name}_optimised OBJECT SOURCES ${arg_OPTIMISED} LINK ${arg_LINK} GTest::gtest PRECOMPILED oomlab_precompiled_headers)
    if(OOMLAB_SANITIZE)  # where it does not run as fast
      target_compile_options(${name}_optimised PRIVATE -O1)
    else()
      oomlab_compiled_quickly(${name}_optimised -Og)
    endif()
    target_compile_definitions(${name}_optimised PRIVATE $<TARGET_PROPERTY:${name},COMPILE_DEFINITIONS>)
    oomlab_united(${name}_optimised 4)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:${name}_optimised>)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 1200)  # as any limit here: what only a hang reaches, also on a busy machine
  endif()
  set(properties "")
  if(arg_LABELS)
    list(APPEND properties LABELS "${arg_LABELS}")
  endif()
  if(arg_ENVIRONMENT)  # one variable: gtest_discover_tests does not carry a list
    list(APPEND properties ENVIRONMENT "${arg_ENVIRONMENT}")
  endif()
  if(OOMLAB_BACKEND STREQUAL "cuda")  # oomlab_alone_on_the_gpu() of tests that are found later
    list(APPEND properties RESOURCE_LOCK gpu)
  endif()
  if(OOMLAB_SANITIZE)
    set(nightly "")
    if(arg_ALSO_OTHERWISE)
      set(nightly NIGHTLY)
    endif()
    set(at_night ${arg_NIGHTLY_UNDER_ASAN})
    if(OOMLAB_CHECK)
      set(at_night ${arg_NIGHTLY_IN_CHECK})
    endif()
    oomlab_whole_program_test(${name} COMMAND ${name} LABELS ${arg_LABELS} ENVIRONMENT ${arg_ENVIRONMENT} ${nightly} AT_NIGHT ${at_night})
  else()
    if(arg_ON_ONE_CORE)
      oomlab_one_core(one_core)
      list(APPEND properties ${one_core})
    endif()
    gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 600
      PROPERTIES ${properties} TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 2)
  endif()
endfunction()

if(OOMLAB_TESTS)
  enable_testing()
  include(GoogleTest)
  if(OOMLAB_BACKEND STREQUAL "cuda")  # which builds where no driver is, and then no program of it can be asked
    set(CMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE PRE_TEST)
  endif()
endif()

add_subdirectory("${OOMLAB_ROOT}/common" "${CMAKE_BINARY_DIR}/common")
if(OOMLAB_TESTS)
  oomlab_precompiled(oomlab_precompiled_tests HEADERS "${OOMLAB_ROOT}/cmake/precompiled.h" <gtest/gtest.h>
    LINK oomlab_cuda GTest::gtest)
  if(TARGET oomlab_precompiled_tests)
    oomlab_compiled_quickly(oomlab_precompiled_tests -O0)
  endif()
  add_library(oomlab_read_json STATIC "${OOMLAB_ROOT}/tests/json/read_json.cpp")
  target_include_directories(oomlab_read_json PUBLIC "${OOMLAB_ROOT}/tests/json")
  target_link_libraries(oomlab_read_json PUBLIC oomlab_flags nlohmann_json::nlohmann_json)
  oomlab_compiled_quickly(oomlab_read_json -O0)
endif()
include("${OOMLAB_ROOT}/cmake/OomlabChapter.cmake")
