// What nearly every lesson includes, for the host build: see oomlab_precompiled() in Oomlab.cmake.
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <oomlab_lesson.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>
