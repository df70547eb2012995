# oomlab_chapter(): called by chapters/NN_name/CMakeLists.txt. Everything is derived from the folder, so a new
# chapter needs no list to be edited anywhere.
#   lesson.cu              a program of its own, build/<preset>/bin/NN_name_lesson (OomlabLesson.cmake)
#   main.cu, *.cu, *.cpp   the program, build/<preset>/bin/NN_name
#   kernels.cu             kernels that take long to compile: once, optimised, for the program and its tests
#   tests/*.cpp            its own GoogleTest program
#   bench/*.{cpp,cu}       NN_name_bench, a program that judges times (bench/benchmarks/judged.h): run by tests/run bench alone
# from tests/lessons/: that the lesson passes, and fails without its mitigation
# and from tests/chapter/: bytes (predicted = plan = measured), bad input, faults.
include("${CMAKE_CURRENT_LIST_DIR}/OomlabLesson.cmake")

# The object library NN_name_kernels, of a chapter's kernels.cu: also where only a chapter that builds on it is built.
function(oomlab_chapter_kernels name)
  set(source "${OOMLAB_ROOT}/chapters/${name}/kernels.cu")
  if(EXISTS "${source}" AND NOT TARGET ${name}_kernels)
    oomlab_library(${name}_kernels OBJECT SOURCES "${source}" LINK oomlab_nn)
    set_target_properties(${name}_kernels PROPERTIES OOMLAB_WIDE_PIECES ON)
  endif()
endfunction()

function(oomlab_chapter)
  get_filename_component(name "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
  # oomlab_chapter(NCCL DEVICES 8): a chapter on several devices; its own tests get as many from the host runtime.
  # oomlab_chapter(KERNELS_OF NN_other): it includes headers of an earlier chapter, whose kernels are in a kernels.cu.
  # oomlab_chapter(LESSON_ENVIRONMENT NAME=value...): settings of the host runtime for the lesson.
  # oomlab_chapter(NO_KERNELS): main.cu and its headers have none, and are C++ for every compiler.
  # oomlab_chapter(NIGHTLY_IN_CHECK case... NIGHTLY_UNDER_ASAN case...): of its own tests, as of oomlab_test().
  cmake_parse_arguments(arg "NCCL;NO_KERNELS" "DEVICES" "KERNELS_OF;LESSON_ENVIRONMENT;NIGHTLY_IN_CHECK;NIGHTLY_UNDER_ASAN" ${ARGN})
  set(link oomlab_harness oomlab_nn oomlab_data)
  set(kernels "")
  foreach(chapter IN LISTS name arg_KERNELS_OF)
    oomlab_chapter_kernels(${chapter})
    if(TARGET ${chapter}_kernels)
      list(APPEND kernels ${chapter}_kernels)
    endif()
  endforeach()
  list(APPEND link ${kernels})
  if(arg_NCCL AND OOMLAB_BACKEND STREQUAL "cuda")
    if(NOT TARGET oomlab_nccl)
      return()
    endif()
    list(APPEND link oomlab_nccl)
  endif()
  if(arg_NCCL)
    list(PREPEND link oomlab_train)
  endif()
  set(environment "")
  set(again "")
  if(arg_DEVICES)
    if(OOMLAB_CHECK AND arg_DEVICES GREATER 4)  # each has several threads a block
      set(arg_DEVICES 4)
    endif()
    set(environment ENVIRONMENT "OOMLAB_HOST_DEVICES=${arg_DEVICES}")
    if(NOT OOMLAB_CHECK)  # tests/chapter/chapter.cmake
      set(again ALSO_OTHERWISE)
    endif()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cu" "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  list(REMOVE_ITEM sources "${CMAKE_CURRENT_SOURCE_DIR}/kernels.cu")
  set(launcher "")
  set(lesson "${CMAKE_CURRENT_SOURCE_DIR}/lesson.cu")
  if("${lesson}" IN_LIST sources)
    list(REMOVE_ITEM sources "${lesson}")
    if(OOMLAB_LESSONS)
      oomlab_lesson_program(${name}_lesson "${lesson}")
    endif()
  endif()
  if(arg_NCCL AND TARGET oomlab_mpi)
    set(launcher oomlab_mpi)
  endif()
  # Compiled once: the program, and the tests that call its main() as a function, are linked from the same objects.
  oomlab_library(${name}_objects OBJECT SOURCES ${sources} LINK ${link} PRECOMPILED oomlab_precompiled_headers)
  oomlab_compiled_quickly(${name}_objects -O1)
  if(arg_NO_KERNELS)
    oomlab_plain_cpp(${name}_objects "${CMAKE_CURRENT_SOURCE_DIR}/main.cu")
  endif()
  add_executable(${name} $<TARGET_OBJECTS:${name}_objects>)
  target_link_libraries(${name} PRIVATE ${launcher} ${link})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  file(GLOB benches CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/bench/*.cpp" "${CMAKE_CURRENT_SOURCE_DIR}/bench/*.cu")
  if(benches AND OOMLAB_BENCH AND NOT OOMLAB_SANITIZE)
    oomlab_executable(${name}_bench SOURCES ${benches} LINK ${link})
    oomlab_compiled_quickly(${name}_bench -O2)
    target_include_directories(${name}_bench PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
    oomlab_built_by_name(${name}_bench)
  endif()
  if(NOT OOMLAB_TESTS)
    return()
  endif()
  if(TARGET ${name}_lesson)
    include("${OOMLAB_ROOT}/tests/lessons/lessons.cmake")
    oomlab_lesson_tests(${name} "${lesson}" ${environment} ${arg_LESSON_ENVIRONMENT})
  endif()
  file(GLOB tests CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/tests/*.cpp" "${CMAKE_CURRENT_SOURCE_DIR}/tests/*.cu")
  if(tests)
    oomlab_test(${name}_test ${again} SOURCES ${tests} LINK ${link} LABELS chapter ${environment}
      NIGHTLY_IN_CHECK ${arg_NIGHTLY_IN_CHECK} NIGHTLY_UNDER_ASAN ${arg_NIGHTLY_UNDER_ASAN})
    target_include_directories(${name}_test PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  endif()
  include("${OOMLAB_ROOT}/tests/chapter/chapter.cmake")
  oomlab_chapter_tests(${name} ${kernels})
endfunction()

# --plan of a program made for a GPU runs its twin, built with the host runtime: one nested build of the chapters, in
# bin/plan/. Called once, by the root or by a chapter built alone.
function(oomlab_planner)
  include(ExternalProject)
  ExternalProject_Add(oomlab_plan_programs
    SOURCE_DIR "${CMAKE_SOURCE_DIR}"
    BINARY_DIR "${CMAKE_BINARY_DIR}/plan"
    CMAKE_ARGS -DOOMLAB_BACKEND=host -DOOMLAB_NATIVE=OFF -DOOMLAB_MPI=OFF -DOOMLAB_TESTS=OFF -DOOMLAB_BENCH=OFF -DOOMLAB_LESSONS=OFF -DOOMLAB_PROGRAMS=${CMAKE_BINARY_DIR}/bin/plan
      -DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE} "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"  # a plan runs no kernel
    INSTALL_COMMAND ""
    BUILD_ALWAYS ON)
endfunction()
if(OOMLAB_BACKEND STREQUAL "cuda" AND OOMLAB_PLANNER)
  oomlab_planner()
endif()
