# The portable kernels, on the host runtime against loops written by hand, on a GPU against what it can do at best.
if(OOMLAB_BACKEND STREQUAL "host")
  oomlab_executable(bench_kernels SOURCES "${CMAKE_CURRENT_LIST_DIR}/kernels.cu" "${CMAKE_CURRENT_LIST_DIR}/kernels_by_hand.cpp"
    LINK oomlab_harness oomlab_nn oomlab_data benchmark::benchmark)
  target_link_libraries(bench_kernels PRIVATE OpenMP::OpenMP_CXX)
else()
  oomlab_executable(bench_kernels SOURCES "${CMAKE_CURRENT_LIST_DIR}/kernels.cu" "${CMAKE_CURRENT_LIST_DIR}/kernels_floors.cu"
    LINK oomlab_harness oomlab_nn oomlab_data benchmark::benchmark)
endif()
