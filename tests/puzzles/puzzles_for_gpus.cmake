# The puzzles, as they are given and with their solutions, compiled by nvcc for the architectures of the lessons.
set(source "${CMAKE_CURRENT_BINARY_DIR}/all_puzzles.cu")
file(GLOB answers CONFIGURE_DEPENDS "${OOMLAB_ROOT}/chapters/[0-9][0-9]_*/puzzle/*/answers/solution.cu")
list(TRANSFORM puzzles PREPEND "${OOMLAB_ROOT}/chapters/")
add_custom_command(OUTPUT "${source}" COMMAND python3 "${folder}/nvcc_test.py" "${OOMLAB_ROOT}" write "${source}"
  DEPENDS ${puzzles} ${answers} "${folder}/nvcc_test.py" VERBATIM)
add_library(oomlab_puzzles OBJECT "${source}")
target_link_libraries(oomlab_puzzles PRIVATE CUDA::cudart_static)
if(OOMLAB_KERNEL_ARCHITECTURES)
  set_target_properties(oomlab_puzzles PROPERTIES CUDA_ARCHITECTURES "${OOMLAB_KERNEL_ARCHITECTURES}")
endif()
add_test(NAME puzzles.gpu COMMAND ${gpu_test} all)
set_tests_properties(puzzles.gpu PROPERTIES LABELS puzzles TIMEOUT 3600 SKIP_RETURN_CODE 2)
oomlab_alone_on_the_gpu(puzzles.gpu)
