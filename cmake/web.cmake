# The toolchain of the preset web: clang for WASI, with its C++ library, out of the wheel "ziglang", which bench/web puts into build/zig.
# OOMLAB_ZIG names another copy of it.
if(DEFINED ENV{OOMLAB_ZIG})
  set(OOMLAB_ZIG "$ENV{OOMLAB_ZIG}")
else()
  get_filename_component(OOMLAB_ZIG "${CMAKE_CURRENT_LIST_DIR}/../build/zig/ziglang" ABSOLUTE)
endif()
if(NOT EXISTS "${OOMLAB_ZIG}/zig")
  message(FATAL_ERROR "${OOMLAB_ZIG}/zig is not there; bench/web installs it and builds the page")
endif()
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR wasm32)
# CMake wants programs of one word each, which compile for the target even when they are only asked who they are. What zig makes of its
# libraries stays below build/, too.
get_filename_component(tools "${CMAKE_CURRENT_LIST_DIR}/../build/zig/tools" ABSOLUTE)
set(target "-Os -target wasm32-wasi -mcpu=generic+exception_handling -fwasm-exceptions")  # -Os: one C++ library is made, not two
foreach(tool "cc ${target}" "c++ ${target}" ar ranlib)
  string(REGEX MATCH "^[^ ]+" name "${tool}")
  file(CONFIGURE OUTPUT "${tools}/${name}" CONTENT "#!/bin/sh
ZIG_GLOBAL_CACHE_DIR='${tools}/cache' exec '${OOMLAB_ZIG}/zig' ${tool} \"$@\"
" @ONLY)
  file(CHMOD "${tools}/${name}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
endforeach()
set(CMAKE_C_COMPILER "${tools}/cc")
set(CMAKE_CXX_COMPILER "${tools}/c++")
set(CMAKE_AR "${tools}/ar")
set(CMAKE_RANLIB "${tools}/ranlib")
foreach(language C CXX)
  set(CMAKE_${language}_COMPILER_LAUNCHER "")  # zig has a cache of its own
endforeach()
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_EXECUTABLE_SUFFIX_CXX .wasm)
