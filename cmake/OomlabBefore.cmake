# Included before project(): the one place where CUDA architectures are chosen.
# With no choice by the user: what the machine has ("native"), and when it has no GPU, all major ones (see Oomlab.cmake).
set(OOMLAB_BACKEND "host" CACHE STRING "Where the chapters run: host (no GPU needed) or cuda; web: only the planner, in a browser")
set_property(CACHE OOMLAB_BACKEND PROPERTY STRINGS host cuda web)
if(NOT OOMLAB_BACKEND MATCHES "^(host|cuda|web)$")
  message(FATAL_ERROR "OOMLAB_BACKEND is '${OOMLAB_BACKEND}'; allowed: host, cuda, web")
endif()
if(OOMLAB_BACKEND STREQUAL "cuda" AND NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  set(CMAKE_CUDA_ARCHITECTURES native)
endif()
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
