# The tests that every chapter gets without asking. Called by oomlab_chapter().
#   NN_name.Bytes…   predicted = plan = measured peak bytes, for every line of tests/bytes.txt     (label bytes)
#   NN_name.Cli…     bad input, interruption, result files and their formats                       (label cli)
#   NN_name.faults…  every fallible call made to fail                              (host only, label faults)
if(NOT TARGET oomlab_chapter_checks)
  add_library(oomlab_chapter_checks OBJECT "${CMAKE_CURRENT_LIST_DIR}/bytes_test.cpp"
    "${CMAKE_CURRENT_LIST_DIR}/cli_test.cpp" "${CMAKE_CURRENT_LIST_DIR}/process.cpp")
  target_link_libraries(oomlab_chapter_checks PUBLIC oomlab_flags GTest::gtest fmt::fmt nlohmann_json::nlohmann_json)
  oomlab_compiled_quickly(oomlab_chapter_checks)
  if(OOMLAB_BACKEND STREQUAL "host")
    add_library(oomlab_fault_sweep OBJECT "${CMAKE_CURRENT_LIST_DIR}/fault_sweep.cpp"
      "${CMAKE_CURRENT_LIST_DIR}/../faults/operator_new.cpp")
    target_link_libraries(oomlab_fault_sweep PUBLIC oomlab_harness nlohmann_json::nlohmann_json)
    oomlab_compiled_quickly(oomlab_fault_sweep)
  endif()
endif()

function(oomlab_chapter_tests name)
  set(folder "${OOMLAB_ROOT}/tests/chapter")
  add_executable(${name}_checks $<TARGET_OBJECTS:oomlab_chapter_checks>)
  target_link_libraries(${name}_checks PRIVATE oomlab_flags GTest::gtest_main fmt::fmt nlohmann_json::nlohmann_json)
  set_target_properties(${name}_checks PROPERTIES LINKER_LANGUAGE CXX)
  add_dependencies(${name}_checks ${name})
  # One variable: gtest_discover_tests does not carry a list of them.
  set(slow $<IF:$<BOOL:${OOMLAB_CHECK}>,slowest,$<IF:$<BOOL:${OOMLAB_SANITIZE}>,slow,fast>>)
  set(environment "OOMLAB_UNDER_TEST=$<TARGET_FILE:${name}>|${CMAKE_CURRENT_SOURCE_DIR}|${OOMLAB_ROOT}|${slow}")
  gtest_discover_tests(${name}_checks TEST_FILTER "Bytes*" TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60
    PROPERTIES ENVIRONMENT "${environment}" LABELS "bytes" TIMEOUT 1200)
  # In check mode a run takes a hundred times as long: the one of the bytes test is enough.
  set(cli "*Cli*")
  if(OOMLAB_CHECK)
    set(cli "*CliBadInput*")
  endif()
  gtest_discover_tests(${name}_checks TEST_FILTER "${cli}" TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60
    PROPERTIES ENVIRONMENT "${environment}" LABELS "cli" TIMEOUT 600)

  if(OOMLAB_BACKEND STREQUAL "host")
    # The chapter itself, its main() under another name, called again and again by the sweep.
    oomlab_library(${name}_swept SOURCES ${ARGN} LINK oomlab_harness oomlab_nn oomlab_data)
    target_compile_definitions(${name}_swept PRIVATE main=oomlab_chapter_main)
    add_executable(${name}_fault_sweep $<TARGET_OBJECTS:oomlab_fault_sweep>)
    target_link_libraries(${name}_fault_sweep PRIVATE ${name}_swept oomlab_harness oomlab_nn oomlab_data)
    set_target_properties(${name}_fault_sweep PROPERTIES LINKER_LANGUAGE CXX)
    target_link_options(${name}_fault_sweep PRIVATE "LINKER:--wrap=open,--wrap=write,--wrap=close,--wrap=rename")
    # A sample, so that all chapters are swept in minutes: a run under a sanitizer takes ten times as long, with threads
    # a hundred times. Every call, nightly: ctest --preset host -C Nightly -L nightly
    set(sites 1000)
    if(OOMLAB_CHECK)
      set(sites 5)
    elseif(OOMLAB_SANITIZE)
      set(sites 50)
    endif()
    # Thousands of runs: a chapter may name something smaller than --quick for them.
    set(smaller "")
    if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/tests/faults.txt")
      file(STRINGS "${CMAKE_CURRENT_SOURCE_DIR}/tests/faults.txt" smaller REGEX "^-")
      separate_arguments(smaller UNIX_COMMAND "${smaller}")
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/tests/faults.txt")
    endif()
    # With several devices, each rank's calls by themselves: between ranks there is no order to count in.
    set(variations once from)
    if(arg_DEVICES)
      set(variations "once --device 0" "once --device 1" "from --device 0" "from --device 1")
      math(EXPR sites "(${sites} + 1) / 2")
    endif()
    foreach(variation IN LISTS variations)
      string(REPLACE " --device " ".rank" mode "${variation}")
      separate_arguments(variation)
      set(command ${name}_fault_sweep --program ${name} --mode ${variation})
      add_test(NAME ${name}.faults.${mode} COMMAND ${command} --sites ${sites} -- ${smaller})
      add_test(NAME ${name}.faults.${mode}.all CONFIGURATIONS Nightly COMMAND ${command} -- ${smaller})
      set_tests_properties(${name}.faults.${mode} PROPERTIES LABELS "faults" TIMEOUT 2400
        ENVIRONMENT "OMP_NUM_THREADS=1;OPENBLAS_NUM_THREADS=1")
      set_tests_properties(${name}.faults.${mode}.all PROPERTIES LABELS "nightly" TIMEOUT 14400
        ENVIRONMENT "OMP_NUM_THREADS=1;OPENBLAS_NUM_THREADS=1")
    endforeach()
  endif()
endfunction()
