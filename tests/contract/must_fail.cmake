# cmake -DPROGRAM=... -DSTATUS=66 -DWORDS="data race" -P must_fail.cmake
execute_process(COMMAND "${PROGRAM}" RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT status STREQUAL STATUS OR NOT output MATCHES "${WORDS}")
  message(FATAL_ERROR "${PROGRAM} must exit with ${STATUS} and say '${WORDS}'; it exited with ${status} and said:\n${output}")
endif()
