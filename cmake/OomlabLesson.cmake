# A chapter's lesson.cu, the program NN_name_lesson. nvcc compiles it as it stands; for the host runtime it is rewritten
# into C++ first (rewrite_lesson.cmake). It is linked with what its first line names, the command that also builds it
# with nothing else of this repository: -lcublas, -lcuda, -lnccl.
#   oomlab_lesson_program(target lesson.cu [WITHOUT_MITIGATION])   the latter on the host only
function(oomlab_lesson_program target lesson)
  cmake_parse_arguments(arg "WITHOUT_MITIGATION" "" "" ${ARGN})
  if(OOMLAB_BACKEND STREQUAL "host")
    set(source "${CMAKE_CURRENT_BINARY_DIR}/${target}.cpp")
    add_custom_command(OUTPUT "${source}"
      COMMAND "${CMAKE_COMMAND}" "-DINPUT=${lesson}" "-DOUTPUT=${source}"
        "-DWITHOUT_MITIGATION=${arg_WITHOUT_MITIGATION}" -P "${OOMLAB_ROOT}/cmake/rewrite_lesson.cmake"
      DEPENDS "${lesson}" "${OOMLAB_ROOT}/cmake/rewrite_lesson.cmake" VERBATIM)
    oomlab_executable(${target} SOURCES "${source}" LINK oomlab_runtime)
    if(NOT TARGET oomlab_precompiled_lessons)
      oomlab_precompiled(oomlab_precompiled_lessons HEADERS "${OOMLAB_ROOT}/cmake/precompiled_lesson.h" LINK oomlab_runtime)
    endif()
    oomlab_use_precompiled(${target} oomlab_precompiled_lessons)
  else()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${lesson}")
    file(STRINGS "${lesson}" command LIMIT_COUNT 1)
    string(REGEX MATCHALL "-l[a-z]+" libraries "${command}")
    list(TRANSFORM libraries REPLACE "^-lcublas$" "CUDA::cublas")
    list(TRANSFORM libraries REPLACE "^-lcuda$" "CUDA::cuda_driver")
    list(TRANSFORM libraries REPLACE "^-lnccl$" "oomlab_nccl")
    oomlab_executable(${target} SOURCES "${lesson}" LINK ${libraries})
    target_compile_options(${target} PRIVATE --Werror=all-warnings)
    if(NOT command MATCHES "-std=")
      set_target_properties(${target} PROPERTIES CUDA_STANDARD 17)  # nvcc's own choice
    endif()
    if(OOMLAB_KERNEL_ARCHITECTURES)
      set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${OOMLAB_KERNEL_ARCHITECTURES}")
    endif()
  endif()
endfunction()
